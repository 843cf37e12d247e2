"""Several processes against one with the whole batch: loss, gradients, scale and state."""

from __future__ import annotations

import json
import os
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
from medclip_debias.losses.distributed import Ranks, gather_batch, gather_rows, gather_views
from medclip_debias.losses.objective import (
    ContrastiveLoss,
    ContrastiveSettings,
    build_objective,
    loss_settings,
)
from medclip_debias.losses.sharded import ShardedBatch, shard_batch, whole_batch_reason
from medclip_debias.losses.two_views import TwoViewBatch
from medclip_debias.models.similarity import Similarity

WORLDS = (2, 3)
MOST = max(WORLDS)  # has every case
OWNERS = torch.tensor([0, 0, 1, 2, 3, 3, 4, 5, 6, 7, 7, 7])
STUDIES = torch.tensor([7, 8, 9, 10, 11, 9, 12, 13])
NAMES = ("Cardiomegaly", "Edema", "Pleural Effusion", "Pneumonia", "Pneumothorax")
VIEWS = ("clip", "debiased", "xclr")
READ_WHERE_THERE = {"study_of_image", "labels"}  # without being required
CUTS = {1: [0, 8], 2: [0, 3, 8], 3: [0, 1, 4, 8]}
"""First image of each process: unequal numbers of images and, per OWNERS, of sentences."""


def cases():
    """Name of a case, and its loss settings: every policy, and every objective as often as its
    settings read different fields."""
    listed = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())
    found, seen = {}, set()
    for content in listed["objectives"] + listed["around"]:
        reads = (content["kind"], required(content))
        if reads not in seen:
            seen.add(reads)
            found[json.dumps(content)] = content
    for policy in {each["kind"]: each for each in listed["policies"][::-1]}.values():
        content = {"kind": "infonce", "direction": "symmetric", "negatives": [policy]}
        found[policy["kind"]] = content
    glofnd = found["glofnd"]["negatives"]
    for temperature in ("robust", "modality", "individual"):
        sogclr = {"kind": "sogclr", "temperature": temperature, "negatives": glofnd}
        found[f"sogclr, {temperature}, glofnd"] = sogclr
    of_images = {"eta", "text_similarity", "sample_ids", "labels"}  # what two views have
    views = ["fnc", "glofnd", "sogclr, robust, glofnd"]
    views += [n for n, c in found.items() if c["kind"] in VIEWS and required(c) <= of_images]
    return found | {f"{name}, two views": found[name] for name in views}


def required(content):
    return build_objective(loss_settings(content, "test")).requires


def reason(content):
    return whole_batch_reason(build_objective(loss_settings(content, "test")))


SHARED = [
    name
    for name, content in cases().items()
    if reason(content) is None and not name.endswith("two views")
]
GIVEN_APART = {"image_of_sentence", "text_similarity", "label_names", "seed", "done"}


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


def data(step, dtype):
    """One whole batch: inputs, fields of an image and of a sentence."""
    g = torch.Generator().manual_seed(step)
    x = torch.randn(8, 3, 5, generator=g, dtype=torch.float64).to(dtype)
    y = torch.randn(12, 6, generator=g, dtype=torch.float64).to(dtype)
    vectors = F.normalize(torch.randn(12, 4, generator=g, dtype=torch.float64), dim=-1).to(dtype)
    graph = torch.rand(12, 12, generator=g, dtype=torch.float64).to(dtype)
    pick = torch.randint(0, 4, (8, len(NAMES)), generator=g)
    per_image = {
        "sample_ids": STUDIES,
        "study_of_image": STUDIES,
        "labels": torch.tensor([1.0, 0.0, -1.0, float("nan")])[pick],
        "agreement": torch.rand(8, 6, generator=g) < 0.3,
    }
    per_sentence = {
        "log_prob": -torch.rand(12, generator=g, dtype=torch.float64).to(dtype) * 20,
        "eta": torch.rand(12, generator=g, dtype=torch.float64).to(dtype) * 0.9,
        "text_ids": torch.randint(0, 6, (12,), generator=g),
        "keywords": torch.randint(0, 3, (12,), generator=g),
        "graph": graph,
    }
    per_image["stated"] = torch.randint(-100, 101, (8, 3), generator=g, dtype=torch.int8)
    per_sentence["claims"] = torch.randint(-3, 4, (12, 2), generator=g)
    assert set(FIELDS) == per_image.keys() | per_sentence.keys() | GIVEN_APART
    return x, y, vectors, per_image, per_sentence


def whole_batch(model, step, two_views, dtype):
    x, y, vectors, per_image, per_sentence = data(step, dtype)
    scale = model.similarity.scale
    equal = {"label_names": NAMES, "seed": step, "done": 0.4}
    if two_views:
        first, second = (model.regions(x[:, n]) for n in (0, 1))
        cosine = vectors[:8] @ vectors[:8].T
        fields = per_image | {"eta": per_sentence["eta"][:8], "text_similarity": cosine}
        return TwoViewBatch.from_views(first, second, scale, **fields, **equal)
    similarity = model.similarity(model.regions(x), model.sentences(y))
    cosine = (vectors @ vectors.T).clamp(-1, 1)
    fields = per_image | per_sentence | {"text_similarity": cosine}
    return ContrastiveBatch(similarity, scale, OWNERS, **fields, **equal)


def gathered_batch(model, step, two_views, dtype, ranks, shard=False, reads=None):
    """The same from this process's part: some of the 8 images and their sentences.

    Of the fields only those in ``reads``, if given: gathering the others is most of the work.
    """
    x, y, vectors, per_image, per_sentence = data(step, dtype)
    images = slice(*CUTS[ranks.world][ranks.rank : ranks.rank + 2])
    part = torch.arange(images.start, images.stop)
    mine = torch.isin(OWNERS, part)
    fields = {name: value[images] for name, value in per_image.items()}
    scale = model.similarity.scale
    equal = {"label_names": NAMES, "seed": step, "done": 0.4}

    def read(fields):
        return {name: fields[name] for name in fields if reads is None or name in reads}

    if two_views:
        first, second = (model.regions(x[images, n]) for n in (0, 1))
        cosine = (vectors[:8] @ vectors[:8].T)[images]
        fields |= {"eta": per_sentence["eta"][images], "text_similarity": cosine}
        return gather_views(first, second, scale, ranks, **read(fields), **equal)
    fields |= {name: value[mine] for name, value in per_sentence.items()}
    gather = shard_batch if shard else gather_batch
    return gather(
        model.regions(x[images]),
        model.sentences(y[mine]),
        model.similarity,
        scale,
        ranks,
        image_of_sentence=OWNERS[mine] - images.start,
        text_vectors=vectors[mine] if reads is None or "text_similarity" in reads else None,
        **read(fields),
        **equal,
    )


def learned(model, objective):
    return [*model.parameters(), *objective.parameters()]


def relative(a, b):
    """Largest difference of two lists of tensors against the largest entry."""
    size = max((t.abs().max().item() for t in b if t.numel()), default=0.0)
    gap = max(
        ((s - t).abs().max().item() for s, t in zip(a, b, strict=True) if t.numel()), default=0
    )
    return gap / size if size else gap


def descent(content, dtype, batch_of, reduce=None):
    """Loss, gradients and diagnostics of steps of plain descent, and the state at its end.

    Where the objective has state or learns, what the first step leaves enters the second.
    """
    model = Pair(dtype)
    objective = build_objective(loss_settings(content, "test")).to(dtype)
    keeps = any(True for _ in (*objective.buffers(), *objective.parameters()))
    found = []
    for step in (0, 1) if keeps else (1,):
        batch = batch_of(model, step)
        output = objective(batch)
        loss = batch.loss_of(output) if isinstance(batch, ShardedBatch) else output.loss
        loss.backward()
        parameters = learned(model, objective)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        if reduce:
            reduce(gradients)
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                p -= 0.05 * gradient
                p.grad = None
        found.append((loss.detach(), gradients, output.diagnostics))
    return found, [b.double() for b in objective.buffers()]


def of_one(content, two_views, dtype):
    """What one process computes with the whole batch."""
    return descent(content, dtype, lambda model, step: whole_batch(model, step, two_views, dtype))


def compare(content, two_views, dtype, ranks, expected, shard=False, everything=False):
    """Largest relative differences to what one process computes with every field.

    The processes gather ``everything``, or what the objective reads.
    """
    reads = None if everything else required(content) | READ_WHERE_THERE

    def reduce(gradients):  # in one bucket, as DistributedDataParallel does
        bucket = parameters_to_vector(gradients)
        dist.all_reduce(bucket, group=ranks.group)
        vector_to_parameters(bucket / ranks.world, gradients)

    found, many = descent(
        content,
        dtype,
        lambda model, step: gathered_batch(model, step, two_views, dtype, ranks, shard, reads),
        reduce,
    )
    worst = {"loss": 0.0, "gradient": 0.0, "state": 0.0, "ranks": 0.0, "diagnostics": 0.0}
    for ours, one in zip(found, expected[0], strict=True):
        worst["loss"] = max(worst["loss"], relative([ours[0]], [one[0]]))
        worst["gradient"] = max(worst["gradient"], relative(ours[1], one[1]))
        assert ours[2].keys() == one[2].keys()
        for name, value in one[2].items():
            gap = relative([ours[2][name].double()], [value.double()])
            worst["diagnostics"] = max(worst["diagnostics"], gap)
    worst["state"] = relative(many, expected[1])
    if many:
        state = torch.cat([buffer.flatten() for buffer in many])
        copies = [torch.empty_like(state) for _ in range(ranks.world)]
        dist.all_gather(copies, state, group=ranks.group)
        if not all(torch.equal(copy, state) for copy in copies):
            worst["ranks"] = 1.0
    return worst


def gathering(ranks):
    """Unequal rows; each process weights the gathered rows by its own number."""
    x = torch.full((ranks.rank + 1, 2), float(ranks.rank), requires_grad=True)
    rows = gather_rows(x, ranks)
    (rows * (ranks.rank + 1)).sum().backward()
    return {"rows": rows[:, 0].tolist(), "gradient": x.grad[0, 0].item()}


SINGLE = {"kind": "clip"}


def worker(rank, folder, expected):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=MOST
    )
    found = {}
    groups = {world: dist.new_group(list(range(world))) for world in WORLDS}
    for world, group in groups.items():
        if rank >= world:
            continue
        ranks = Ranks(rank, world, group)
        found[f"{world} gathering"] = gathering(ranks)
        for name, content in cases().items() if world == MOST else ():
            views = name.endswith("two views")
            given = (content, views, torch.float64, ranks, expected[name])
            found[f"{world} {name}"] = compare(*given)
            if name in SHARED:
                found[f"{world} {name}, sharded"] = compare(*given, shard=True)
        given = (SINGLE, False, torch.float32, ranks, expected["float32"])
        found[f"{world} float32"] = compare(*given, everything=True)
        found[f"{world} float32, sharded"] = compare(*given, shard=True, everything=True)
    assert Ranks.current() == Ranks(rank, MOST)
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each process found; one start of processes for every case."""
    folder = tmp_path_factory.mktemp("ranks")
    # Without it each process resolves its host name, which some machines cannot.
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    expected = {
        name: of_one(content, name.endswith("two views"), torch.float64)
        for name, content in cases().items()
    }
    expected["float32"] = of_one(SINGLE, False, torch.float32)
    mp.start_processes(worker, args=(folder, expected), nprocs=MOST, start_method="fork")
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(MOST)]


@pytest.mark.parametrize("name", cases())
def test_many_processes_compute_what_one_does_with_the_whole_batch(results, name):
    for rank in range(MOST):
        found = results[rank][f"{MOST} {name}"]
        assert found["loss"] <= 1e-9
        assert found["gradient"] <= 1e-9
        # float32 tables, on similarities that differ in their last digits
        assert found["state"] <= 1e-5
        assert found["ranks"] == 0


@pytest.mark.parametrize("name", SHARED)
def test_processes_that_share_the_loss_compute_what_one_does(results, name):
    for rank in range(MOST):
        found = results[rank][f"{MOST} {name}, sharded"]
        assert found["loss"] <= 1e-9
        assert found["gradient"] <= 1e-9
        assert found["diagnostics"] <= 1e-9
        assert found["state"] == 0
        assert found["ranks"] == 0


def test_what_looks_at_more_than_an_anchors_own_row_is_not_shared():
    refused = {name: why for name, content in cases().items() if (why := reason(content))}
    kinds = {why.split("'")[1] for why in refused.values()}
    assert kinds == {"sogclr", "glofnd", "resample_by_text"}
    control = {"kind": "multi_positive", "evidence": {"kind": "known", "control": "random"}}
    assert "'known'" in reason(control)
    assert len(SHARED) > len(refused)


def test_an_objective_of_ones_own_is_not_shared_unless_it_says_that_it_can_be():
    class Own(ContrastiveLoss):
        kind, settings_class = "own", ContrastiveSettings

    assert "'own'" in whole_batch_reason(Own())


@pytest.mark.parametrize("kind", ["", ", sharded"])
@pytest.mark.parametrize("world", WORLDS)
def test_in_float32_they_agree_to_a_hundred_thousandth(results, world, kind):
    for rank in range(world):
        found = results[rank][f"{world} float32{kind}"]
        assert found["loss"] <= 1e-5
        assert found["gradient"] <= 1e-5


@pytest.mark.parametrize("world", WORLDS)
def test_unequal_rows_are_gathered_in_order_and_gradients_are_summed(results, world):
    rows = [float(rank) for rank in range(world) for _ in range(rank + 1)]
    for rank in range(world):
        found = results[rank][f"{world} gathering"]
        assert found["rows"] == rows
        assert found["gradient"] == sum(range(1, world + 1))


def test_one_process_gathers_nothing():
    x = torch.randn(3, 2)
    assert gather_rows(x, Ranks()) is x
    assert Ranks.current() == Ranks(0, 1)
    model = Pair(torch.float64)
    alone = gathered_batch(model, 0, False, torch.float64, Ranks())
    whole = whole_batch(model, 0, False, torch.float64)
    assert torch.equal(alone.similarity, whole.similarity)
    assert torch.equal(alone.owners, whole.owners)


def test_an_unknown_field_or_a_missing_owner_is_named():
    x, y = torch.eye(3)[:2], torch.eye(3)
    with pytest.raises(TypeError, match="log_probs"):
        gather_batch(x, x, torch.matmul, torch.tensor(1.0), Ranks(), log_probs=x)
    with pytest.raises(ValueError, match="image_of_sentence"):
        gather_batch(x, y, lambda a, b: a @ b.T, torch.tensor(1.0), Ranks())
