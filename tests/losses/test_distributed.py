"""Several processes against one with the whole batch: loss, gradients, diagnostics and state."""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
import yaml
from torch import nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from medclip_debias.config import SimilaritySettings
from medclip_debias.losses.batch import FIELDS, ContrastiveBatch
from medclip_debias.losses.distributed import (
    Ranks,
    gather_batch,
    gather_views,
    whole_batch_reason,
)
from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.losses.two_views import TwoViewBatch
from medclip_debias.models.similarity import Similarity
from tests.losses.conftest import fields

WORLD = 3
OWNERS = torch.tensor([0, 0, 1, 2, 3, 3, 4, 5, 6, 7, 7, 7])
CUTS = [0, 1, 4, 8]
"""First image of each process: unequal numbers of images and, per OWNERS, of sentences."""
OF_IMAGES = {"eta", "text_similarity", "sample_ids", "labels"}  # what two views have
VIEWS = ("clip", "debiased", "xclr")


def cases():
    """Name of a case, and its loss settings: every policy, and every objective as often as its
    settings read different fields."""
    listed = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())
    losses, seen = {}, set()
    for content in listed["objectives"] + listed["around"]:
        reads = (content["kind"], built(content).requires)
        if reads not in seen:
            seen.add(reads)
            losses[json.dumps(content)] = content
    for policy in {each["kind"]: each for each in listed["policies"][::-1]}.values():
        content = {"kind": "infonce", "direction": "symmetric", "negatives": [policy]}
        losses[policy["kind"]] = content
    glofnd = losses["glofnd"]["negatives"]
    for temperature in ("robust", "modality", "individual"):
        sogclr = {"kind": "sogclr", "temperature": temperature, "negatives": glofnd}
        losses[f"sogclr, {temperature}, glofnd"] = sogclr
    views = ["fnc", "glofnd", "sogclr, robust, glofnd"]
    for name, content in losses.items():
        if content["kind"] in VIEWS and built(content).requires <= OF_IMAGES:
            views.append(name)
    return losses | {f"{name}, two views": losses[name] for name in views}


def built(content):
    return build_objective(loss_settings(content, "test"))


def reason(content):
    return whole_batch_reason(built(content))


CASES = cases()
SHARED = [n for n, c in CASES.items() if reason(c) is None and not n.endswith("two views")]
GATHERED = {built(content).requires: name for name, content in reversed(CASES.items())}.values()
"""One case for each set of fields: what can be shared is the same function of the whole batch."""
WHOLE = [name for name in CASES if name not in SHARED or name in GATHERED]
ALL = [*WHOLE, *(f"{name}, sharded" for name in SHARED), "float32", "float32, sharded"]


class Pair(nn.Module):
    """Two linear encoders and the package's similarity."""

    def __init__(self, dtype):
        super().__init__()
        torch.manual_seed(0)
        self.images, self.texts = nn.Linear(5, 4), nn.Linear(6, 4)
        self.similarity = Similarity(SimilaritySettings(k=3.0, temperature=2.0), dim=4)
        self.to(dtype)

    def regions(self, x):
        return F.normalize(self.images(x), dim=-1)

    def sentences(self, y):
        return F.normalize(self.texts(y), dim=-1)


def batch_of(model, step, two_views, dtype, ranks=None, shard=False):
    """The whole batch of 8 images and 12 sentences, or a process's part of it, gathered."""
    g = torch.Generator().manual_seed(step)
    x, y, vectors = (
        torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype)
        for shape in ((8, 3, 5), (12, 6), (12, 4))
    )
    vectors = F.normalize(vectors, dim=-1)
    known = fields(step, 8, 12, dtype) | {"study_of_image": torch.tensor([0, 1, 2, 3, 4, 2, 5, 6])}
    assert set(FIELDS) == known.keys() | {"image_of_sentence"}
    images, texts = torch.arange(8), torch.arange(12)
    if ranks:
        images = torch.arange(*CUTS[ranks.rank : ranks.rank + 2])
        texts = torch.isin(OWNERS, images).nonzero().squeeze(1)
    if two_views:
        known["eta"] = known["eta"][:8]
        known["text_similarity"] = vectors[:8] @ vectors[:8].T
        known = {name: known[name] for name in OF_IMAGES | {"label_names", "seed", "done"}}
        texts = images
    rows = {"image": images, "text": texts, "pair": texts}
    part = {
        name: value if FIELDS[name].axis == "batch" else value[rows[FIELDS[name].axis]]
        for name, value in known.items()
    }
    scale = model.similarity.scale
    if two_views:
        first, second = (model.regions(x[images, n]) for n in (0, 1))
        if ranks is None:
            return TwoViewBatch.from_views(first, second, scale, **part)
        return gather_views(first, second, scale, ranks, **part)
    regions, sentences = model.regions(x[images]), model.sentences(y[texts])
    if ranks is None:
        part["text_similarity"] = (vectors @ vectors.T).clamp(-1, 1)
        return ContrastiveBatch(model.similarity(regions, sentences), scale, OWNERS, **part)
    part |= {"text_similarity": None, "text_vectors": vectors[texts]}
    part["image_of_sentence"] = OWNERS[texts] - images[0]
    return gather_batch(regions, sentences, model.similarity, scale, ranks, shard=shard, **part)


def descent(content, two_views, dtype, ranks=None, shard=False):
    """Loss, gradients and diagnostics of steps of plain descent, and the state at its end.

    One step, or two where the first leaves a state.
    """
    model, objective = Pair(dtype), built(content).to(dtype)
    taken = []
    for step in range(2 if list(objective.buffers()) else 1):
        batch = batch_of(model, step, two_views, dtype, ranks, shard)
        output = objective(batch)
        loss = batch.loss_of(output.per_anchor)
        loss.backward()
        parameters = [*model.parameters(), *objective.parameters()]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        if ranks:  # in one bucket, as DistributedDataParallel does
            bucket = parameters_to_vector(gradients)
            dist.all_reduce(bucket)
            vector_to_parameters(bucket / ranks.world, gradients)
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                p -= 0.05 * gradient
                p.grad = None
        figures = {name: value.double() for name, value in output.diagnostics.items()}
        taken.append((loss.detach(), gradients, figures))
    return taken, [b.double() for b in objective.buffers()]


def relative(a, b):
    """Largest difference of two lists of tensors against the largest entry."""
    size = max((t.abs().max().item() for t in b if t.numel()), default=0.0)
    gaps = ((s - t).abs().max().item() for s, t in zip(a, b, strict=True) if t.numel())
    return max(gaps, default=0.0) / (size or 1.0)


def descent_of(name, ranks=None):
    plain = name.removesuffix(", sharded")
    dtype = torch.float32 if plain == "float32" else torch.float64
    content, two_views = CASES.get(plain, {"kind": "clip"}), plain.endswith("two views")
    return descent(content, two_views, dtype, ranks, shard=name != plain)


def compare(name, ranks, whole):
    """Largest relative differences to what one process computes with the whole batch."""
    one, state = whole[name.removesuffix(", sharded")]
    many, copy = descent_of(name, ranks)
    worst = {"loss": 0.0, "gradient": 0.0, "diagnostics": 0.0, "state": relative(copy, state)}
    for ours, theirs in zip(many, one, strict=True):
        assert ours[2].keys() == theirs[2].keys()
        gaps = {"loss": relative(ours[:1], theirs[:1]), "gradient": relative(ours[1], theirs[1])}
        figures = (relative([ours[2][key]], [value]) for key, value in theirs[2].items())
        gaps["diagnostics"] = max(figures, default=0.0)
        worst |= {key: max(worst[key], gap) for key, gap in gaps.items()}
    if copy:
        flat = torch.cat([buffer.flatten() for buffer in copy])
        copies = [torch.empty_like(flat) for _ in range(ranks.world)]
        dist.all_gather(copies, flat)
        assert all(torch.equal(each, flat) for each in copies)
    return worst


def worker(rank, folder, whole):
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    options = {"rank": rank, "world_size": WORLD, "timeout": timedelta(seconds=120)}
    dist.init_process_group("gloo", init_method=store, **options)
    ranks = Ranks.current()
    assert ranks == Ranks(rank, WORLD)
    content = {name: compare(name, ranks, whole) for name in ALL}
    (folder / f"{rank}.json").write_text(json.dumps(content))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each process computed; one start of processes for every case."""
    folder = tmp_path_factory.mktemp("ranks")
    # Without it each process resolves its host name, which some machines cannot.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    whole = {name: descent_of(name) for name in [*CASES, "float32"]}
    ranks = mp.start_processes(
        worker, args=(folder, whole), nprocs=WORLD, start_method="fork", join=False
    )
    end = time.monotonic() + 200
    while not ranks.join(timeout=1):  # True when all have ended
        assert time.monotonic() < end, "the processes do not answer each other"
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(WORLD)]


@pytest.mark.parametrize("name", ALL)
def test_many_processes_compute_what_one_does_with_the_whole_batch(results, name):
    limit = 1e-5 if name.startswith("float32") else 1e-9
    for result in results:
        assert result[name]["loss"] <= limit
        assert result[name]["gradient"] <= limit
        assert result[name]["diagnostics"] <= max(limit, 1e-5 * ("glofnd" in name))
        # float32 tables, on similarities that differ in their last digits
        assert result[name]["state"] <= 1e-5


def test_what_looks_at_more_than_an_anchors_own_row_is_not_shared():
    kinds = {why.split("'")[1] for content in CASES.values() if (why := reason(content))}
    assert kinds == {"sogclr", "glofnd", "resample_by_text"}
