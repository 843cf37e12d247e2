"""An epoch with a frozen image encoder: computed in every step against read from stored features.

    python scripts/bench/feature_cache.py --threads 2
    python scripts/bench/feature_cache.py --device cuda --arch resnet50 --size 480 --batch 256

Three runs, each without and with stored features, all taking turns in every round: the text
encoder trained, the text encoder frozen, and the text encoder frozen and stored as well. An epoch
is read by the real loader; its figure is the median over the rounds, by the clock and in seconds
of all threads on processors (which other jobs disturb less), and the ratio that of the medians.
Then where the time of a step with stored features goes, and how far the weights after an
epoch in fp16 and bf16 files are from those in fp32. Makes its own phantom in a temporary folder;
both encoders have random weights. Writes Markdown.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from train_step import head, row, seconds
from train_ways import Scale, make_data, settings

from medclip_debias.data.loader import iterate
from medclip_debias.training.step import Trainer

STILL = {"crop": False, "brightness": 0, "contrast": 0}


def trainer(folder: Path, scale: Scale, text: str, stored: bool, **features: Any) -> Trainer:
    """A run whose image encoder is frozen, and with ``text`` ``frozen`` or ``stored`` both."""
    trainable = {"image": "frozen", "text": "all" if text == "trained" else "frozen"}
    wanted = {"folder": folder / "features"} | features
    if stored:
        wanted |= {"cache": True, "text": text == "stored"}
    run = settings(folder, scale, trainable=trainable, augment=STILL, features=wanted)
    return Trainer(run)


def epoch(run: Trainer, number: int, workers: int) -> None:
    """Take the steps of one epoch."""
    steps = run.batches.steps_per_epoch
    for step, batch in enumerate(
        iterate(run.batches, number * steps, (number + 1) * steps, workers), number * steps
    ):
        run.step(step, batch)


def spent(work: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Seconds of ``work`` by the clock, and of all its threads on processors."""
    before = time.process_time()
    wall = seconds(work, device)
    return wall, time.process_time() - before


def ratios(folder: Path, scale: Scale, rounds: int) -> dict[str, float]:
    """Median seconds an epoch of each run with and without stored features."""
    columns = ("computed, s", "stored, s", "ratio", "processor s", "stored", "ratio")
    head("An epoch", "text encoder", *columns)
    found: dict[str, float] = {}
    for text in ("trained", "frozen", "stored"):
        runs = {stored: trainer(folder, scale, text, stored) for stored in (False, True)}
        taken: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for number in range(rounds + 1):
            for stored, run in runs.items():
                took = spent(lambda r=run, n=number: epoch(r, n, scale.workers), run.device)
                if number:  # the first one imports and compiles
                    taken[stored].append(took)
        cells: list[str] = []
        for kind in (0, 1):
            slow, fast = (statistics.median(t[kind] for t in taken[s]) for s in (False, True))
            cells += [f"{slow:.2f}", f"{fast:.3f}", f"{slow / fast:.1f}"]
            found.setdefault(text, slow / fast)
        row(text, *cells)
    return found


def parts(folder: Path, scale: Scale, rounds: int) -> None:
    """Where the processors' time goes in a step that reads stored features of images."""
    head("A step with stored features, processor ms", "part", "text trained", "text stored")
    kinds = ("trained", "stored")
    columns = [dict(_parts(trainer(folder, scale, text, True), rounds)) for text in kinds]
    for name in columns[0]:
        row(name, *(f"{1000 * column[name]:.1f}" for column in columns))


def _parts(run: Trainer, rounds: int) -> Iterator[tuple[str, float]]:
    batch, stored, device = run.batches[0], run.stored, run.device
    assert stored is not None
    kind = 0 if device.type == "cuda" else 1

    def timed(work: Callable[[], object]) -> float:
        work()
        return statistics.median(spent(work, device)[kind] for _ in range(rounds))

    tokens = [run.tokens[number] for number in batch.texts.tolist()]

    def sentences() -> Tensor:
        if stored.texts is not None:
            return stored.sentence_vectors(batch.texts)
        return run.model.encode_ids(tokens)

    def both_ways(make: Callable[[], Tensor]) -> Callable[[], None]:
        def work() -> None:
            made = make()
            made.backward(torch.ones_like(made))

        return work

    def regions_of_batch() -> Tensor:
        return run._image_features(batch).regions

    regions = regions_of_batch().detach().requires_grad_()
    vectors = sentences().detach().requires_grad_()
    yield "reading the batch", timed(lambda: run.batches[1])
    yield "projection of the regions, both ways", timed(both_ways(regions_of_batch))
    yield "sentences, both ways", timed(both_ways(sentences))
    score = run.model.similarity
    yield "similarity, both ways", timed(both_ways(lambda: score(regions, vectors)))
    run.step(0, batch)
    yield "optimiser", timed(run.optimizer.step)
    numbers = iter(range(1, 10_000))
    yield "whole step, without its reading", timed(lambda: run.step(next(numbers), batch))


def precision(folder: Path, scale: Scale) -> None:
    """How far an epoch in files of half precision ends from one in float32."""
    head("An epoch in half precision against fp32", "file", "GiB", "loss", "weights, largest")
    exact: tuple[float, torch.Tensor] | None = None
    for dtype in ("fp32", "fp16", "bf16"):
        run = trainer(folder, scale, "stored", True, dtype=dtype)
        for step in range(run.batches.steps_per_epoch):
            loss = float(run.step(step)["loss"])
        weights = torch.cat([p.detach().flatten().cpu() for p in run.parameters])
        exact = exact or (loss, weights)
        assert run.batches.features is not None
        size = f"{run.batches.features.layout.size / 2**30:.3f}"
        off = float((weights - exact[1]).abs().max())
        row(dtype, size, f"{abs(loss - exact[0]) / exact[0]:.1e}", f"{off:.1e}")


def main(words: list[str] | None = None) -> None:
    """Read the command line, make the data, measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224, help="side of the input in pixels")
    parser.add_argument("--arch", default="resnet18")
    parser.add_argument("--hidden", type=int, default=256, help="width of the text encoder")
    parser.add_argument("--layers", type=int, default=4, help="of the text encoder")
    parser.add_argument("--studies", type=int, default=200, help="of the phantom")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, help="keep the generated data here, or use it again")
    given = parser.parse_args(words)
    torch.set_num_threads(given.threads)
    names = Scale.__dataclass_fields__.keys() & vars(given).keys()
    scale = replace(Scale(), **{name: getattr(given, name) for name in names})
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        if not (folder / "bert").exists():
            make_data(folder, scale)
        shown = {name: value for name, value in vars(scale).items() if value is not False}
        print(", ".join(f"{name} {value}" for name, value in shown.items()), end="")
        print(f", threads {given.threads}, torch {torch.__version__}")
        ratios(folder, scale, given.rounds)
        parts(folder, scale, 3 * given.rounds)
        precision(folder, scale)


if __name__ == "__main__":
    main()
