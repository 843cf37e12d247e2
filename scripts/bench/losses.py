"""Memory and time of the similarity in its two forms, and what objectives and policies cost.

    python scripts/bench/losses.py memory
    python scripts/bench/losses.py memory --aggregator cross_attention --sizes 128
    python scripts/bench/losses.py objectives

Writes markdown tables to standard output. Random unit vectors, 225 regions, 128 dimensions.
"""

from __future__ import annotations

import argparse
import resource
import statistics
from collections.abc import Iterator
from functools import partial
from typing import Any

import psutil
import torch
import torch.nn.functional as F
from common import in_fork, timed

from medclip_debias.config import ImageEncoderSettings, SimilaritySettings
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.objective import (
    POLICIES,
    Objective,
    build_objective,
    loss_settings,
    objectives,
)
from medclip_debias.models.image_encoder import build_image_encoder
from medclip_debias.models.similarity import Similarity

REGIONS, DIM, INPUT, WORDS = 225, 128, 480, 16
FORMS = {"direct": 0, "chunked": None}


def vectors(batch: int, words: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Regions of ``batch`` images and as many sentences, or so many words of each, as leaves."""
    torch.manual_seed(0)
    x = F.normalize(torch.randn(batch, REGIONS, DIM), dim=-1)
    y = F.normalize(torch.randn((batch, words, DIM) if words else (batch, DIM)), dim=-1)
    return x.requires_grad_(), y.requires_grad_()


def one_case(batch: int, form: str, repeats: int, aggregator: str) -> dict[str, Any]:
    """Bytes and seconds of forward and backward of similarity and InfoNCE in this process."""
    settings = SimilaritySettings.model_validate({"aggregator": aggregator, "chunk": FORMS[form]})
    similarity = Similarity(settings, DIM)
    objective = build_objective(loss_settings({"kind": "clip"}, "bench"))
    x, y = vectors(batch, WORDS if aggregator == "local_words" else 0)
    # Everything that a first call loads or allocates once, on a batch too small to matter.
    small = settings.model_copy(update={"chunk": FORMS[form] or 2})
    few = Similarity(small, DIM)(x[:4], y[:4])
    objective(ContrastiveBatch(few, similarity.scale)).loss.backward()
    x.grad = y.grad = None
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def pass_of_both() -> None:
        scores = similarity(x, y)
        objective(ContrastiveBatch(scores, similarity.scale)).loss.backward()

    seconds = []
    for _ in range(repeats):
        seconds.append(timed(pass_of_both)())
        x.grad = y.grad = None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"bytes": peak * 1024, "seconds": seconds}


def direct_bytes(batch: int, aggregator: str) -> int:
    """About what the direct form takes: of LSE+NL six ``[B, B, R]`` float32 tensors at its peak."""
    settings = SimilaritySettings.model_validate({"aggregator": aggregator})
    part = Similarity(settings, DIM).aggregator
    if part is None:
        return 6 * 4 * batch * batch * REGIONS
    one = (torch.empty(1, *each.shape[1:]) for each in vectors(2, WORDS))
    x, y = next(one), next(one)
    return 2 * 4 * batch * part.numbers(x, y.expand(batch, -1, -1))


def memory(sizes: list[int], rounds: int, repeats: int, aggregator: str) -> None:
    """Both forms in turn, each in a process of its own, so that peaks do not mix.

    The direct form is left out, and that is said, where memory is short.
    """
    print("| B | form | peak bytes | of direct | seconds | of direct |")
    print("| --- | --- | --- | --- | --- | --- |")
    for batch in sizes:
        needed, free = direct_bytes(batch, aggregator), psutil.virtual_memory().available
        forms = list(FORMS)
        if needed > 0.9 * free:
            forms.remove("direct")
            reason = f"skipped: needs about {needed / 2**30:.0f} GiB, {free / 2**30:.0f} are free"
            print(f"| {batch} | direct | {reason} | | | |", flush=True)
        peaks: dict[str, list[int]] = {form: [] for form in forms}
        seconds: dict[str, list[float]] = {form: [] for form in forms}
        for _ in range(rounds):
            for form in forms:
                found = in_fork(partial(one_case, batch, form, repeats, aggregator))
                peaks[form].append(found["bytes"])
                seconds[form] += found["seconds"]
        for form in forms:
            peak, median = statistics.median(peaks[form]), statistics.median(seconds[form])
            ratios = ("", "")
            if "direct" in forms:
                base, slow = (statistics.median(d["direct"]) for d in (peaks, seconds))
                ratios = (f"{peak / base:.3f}", f"{median / slow:.2f}")
            row = (batch, form, f"{peak / 2**20:.0f} MiB", ratios[0], f"{median:.2f}", ratios[1])
            print("| " + " | ".join(map(str, row)) + " |", flush=True)


def contenders() -> Iterator[tuple[str, Objective]]:
    """Every objective as it comes, and InfoNCE with each policy; plain InfoNCE first."""
    yield "infonce", build_objective(loss_settings({"kind": "infonce"}, "bench"))
    for kind in objectives():
        if kind != "infonce":
            yield kind, build_objective(loss_settings({"kind": kind}, "bench"))
    for kind in POLICIES.all():
        content = {"kind": "infonce", "negatives": [{"kind": kind}]}
        yield f"infonce + {kind}", build_objective(loss_settings(content, "bench"))


def fields(batch: int) -> dict[str, object]:
    """Random values of everything an objective may read."""
    text = F.normalize(torch.randn(batch, DIM), dim=-1)
    return {
        "log_prob": -20 * torch.rand(batch),
        "eta": 0.5 * torch.rand(batch),
        "text_ids": torch.randint(0, batch, (batch,)),
        "sample_ids": torch.arange(batch),
        "labels": torch.randint(-1, 2, (batch, 5)).float(),
        "text_similarity": (text @ text.T).clamp(-1, 1),
        "keywords": torch.randint(0, 5, (batch,)),
        "graph": torch.rand(batch, batch),
        "agreement": torch.rand(batch, batch) < 0.5,
        "stated": torch.randint(-100, 101, (batch, 60)),
        "claims": torch.randint(-60, 61, (batch, 3)),
        "seed": 0,
        "done": 0.4,
    }


def costs(batch: int, repeats: int) -> None:
    """Time of each objective against similarity and plain InfoNCE, in turn."""
    similarity = Similarity(SimilaritySettings(), DIM)
    x, y = vectors(batch)
    given: dict[str, Any] = fields(batch)
    known = dict(contenders())

    def score() -> torch.Tensor:
        scores: torch.Tensor = similarity(x, y)
        return scores

    def loss(objective: Objective, leaf: torch.Tensor) -> None:
        objective(ContrastiveBatch(leaf, similarity.scale, **given)).loss.backward()

    leaf = score().detach().requires_grad_()
    gradient = torch.randn_like(leaf)
    alone: list[float] = []
    spent: dict[str, list[float]] = {name: [] for name in known}
    for _ in range(repeats):
        alone.append(timed(lambda: score().backward(gradient))())
        for name, objective in known.items():
            spent[name].append(timed(partial(loss, objective, leaf))())
    base, plain = statistics.median(alone), statistics.median(spent["infonce"])
    print(f"\nB = {batch}: similarity alone {base * 1e3:.1f} ms\n")
    print("| objective | loss alone, ms | similarity + loss against plain InfoNCE |")
    print("| --- | --- | --- |")
    for name, values in spent.items():
        own = statistics.median(values)
        print(f"| {name} | {own * 1e3:.2f} | {(base + own) / (base + plain):.3f} |")


def encoder(images: int, repeats: int) -> None:
    """Time of the image encoder's forward and backward pass on a few images."""
    model = build_image_encoder(ImageEncoderSettings())
    pixels = torch.randn(images, 1, INPUT, INPUT)
    values = [timed(lambda: model(pixels).mean().backward())() for _ in range(repeats)]
    each = statistics.median(values) / images
    print(f"\nImage encoder (resnet18, {INPUT} px): {each * 1e3:.0f} ms an image\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verb = verbs.add_parser("memory")
    verb.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024, 2048])
    verb.add_argument("--rounds", type=int, default=3)
    verb.add_argument("--repeats", type=int, default=2)
    verb.add_argument("--aggregator", default="lse_nl")
    verb = verbs.add_parser("objectives")
    verb.add_argument("--sizes", type=int, nargs="+", default=[64, 256])
    verb.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.verb == "memory":
        memory(given.sizes, given.rounds, given.repeats, given.aggregator)
    else:
        encoder(4, 3)
        for batch in given.sizes:
            costs(batch, given.repeats)


if __name__ == "__main__":
    main()
