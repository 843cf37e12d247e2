"""How the time of every verb grows with what it is given: one table in docs/performance.md.

    OMP_NUM_THREADS=1 python scripts/bench/growth.py                    # 400, 800 and 1,600 studies
    python scripts/bench/growth.py --sizes 60 120 240 --rounds 1 --print    # a look

Phantoms of three sizes, 80 to 112 px, one process and thread. Each verb runs on all three in each
round; the exponent is the slope of log seconds over log size (least squares, medians of the
rounds). Seconds are those of the processor, of this process and its children, so that other jobs
count little. A round before the first is not counted. What a verb costs however small its input is
makes an exponent lower, so read it together with the seconds. ``train`` and ``language-model`` grow
with steps, ``ground`` with files, the others with studies.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from common import Page, Row, machine, shown

from medclip_debias.cli import run

REPO = Path(__file__).parents[2]
GOAL = 1.1
CONFIG = REPO / "configs" / "phantom" / "demo.yaml"
SMALL = ["hidden=32", "heads=2", "layers=1", "vocabulary=800", "batch_size=32"]
# Their work does not grow with a set: they read one file, or start other verbs.
LEFT_OUT = (
    "config, losses, report, import-model, card, push, export, view, bench, experiment, study"
)


def verb(*words: object) -> None:
    """Run one verb in this process, silently."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = run([str(word) for word in words])
    if code:
        raise RuntimeError(f"{words[0]}: {' '.join(said.getvalue().split())[-200:]}")


def processor(work: Callable[[], object]) -> float:
    """Seconds of processors that ``work`` takes, children included."""
    before = os.times()
    work()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


class Sets:
    """For each size: a phantom, its prepared set, and words of every verb on it."""

    def __init__(self, folder: Path, sizes: list[int]) -> None:
        self.folder = folder
        self.sizes = sizes
        self.number = iter(range(10**9))
        self.model = folder / "run" / "model"
        self.bert = folder / "bert"
        for size in sizes:
            self.phantom(size, self.tree(size))
            self.prepare(size, self.prepared(size))
            for part in (1, 2):
                shard = ["--shard", f"{part}/2"]
                self.prepare(size, folder / f"part{part}-{size}", *shard)
        first = self.prepared(sizes[0])
        verb("language-model", first, self.bert, *SMALL, "steps=20")
        for size in sizes:
            verb("score", self.prepared(size), "--language-model", self.bert)
            verb("claims", self.prepared(size))
        verb("train", *self.config(sizes[0], folder / "run"), "train.steps=4")
        for size in sizes:
            verb("index", self.model, self.prepared(size), "--out", folder / f"index-{size}")
            for seed in (0, 1):
                out = folder / f"results-{size}-{seed}"
                words = ["--bootstrap", "0", "--seed", seed, "--heatmaps", "0"]
                verb("evaluate", self.model, self.prepared(size), "--out", out, *words)

    def tree(self, size: int) -> Path:
        """The phantom of a size."""
        return self.folder / f"tree-{size}"

    def prepared(self, size: int) -> Path:
        """Its prepared set."""
        return self.folder / f"prepared-{size}"

    def fresh(self) -> Path:
        """A place where nothing is."""
        return self.folder / f"new-{next(self.number)}"

    def config(self, size: int, out: Path) -> list[object]:
        """A run's configuration and its overrides."""
        places = [f"out={out}", f"prepared={self.prepared(size)}", f"model.text.folder={self.bert}"]
        return [CONFIG, *places, "train.device=cpu", "train.batch_size=16", "train.workers=0"]

    def phantom(self, size: int, out: Path) -> None:
        """Generate."""
        sides = ["--set", "min_side=80", "--set", "max_side=112"]
        verb("phantom", out, "--studies", size, "--seed", 1, "--workers", 1, *sides)

    def prepare(self, size: int, out: Path, *words: object) -> None:
        """Prepare."""
        verb("prepare", self.tree(size), out, "--size", 72, "--workers", 1, *words)

    def verbs(self) -> Iterator[tuple[str, str, Callable[[int], object]]]:
        """Name, what it grows with, and the work at a size."""
        model, set_of = self.model, self.prepared
        judge = ["--bootstrap", "200", "--device", "cpu"]
        yield "phantom", "studies", lambda n: self.phantom(n, self.fresh())
        yield "prepare", "studies", lambda n: self.prepare(n, self.fresh())
        parts = [self.folder / "part1", self.folder / "part2"]
        yield (
            "merge",
            "studies",
            lambda n: verb("merge", *(f"{p}-{n}" for p in parts), self.fresh()),
        )
        yield "claims", "studies", lambda n: verb("claims", set_of(n))
        yield "score", "studies", lambda n: verb("score", set_of(n), "--language-model", self.bert)
        yield (
            "language-model",
            "steps",
            lambda n: verb(
                "language-model", set_of(self.sizes[0]), self.fresh(), *SMALL, f"steps={n // 2}"
            ),
        )
        yield (
            "train",
            "steps",
            lambda n: verb(
                "train", *self.config(self.sizes[0], self.fresh()), f"train.steps={n // 20}"
            ),
        )
        frozen = ["train.trainable.image=frozen", "train.features.cache=true"]
        frozen += [
            "train.augment.crop=false",
            "train.augment.brightness=0",
            "train.augment.contrast=0",
        ]
        yield "features", "studies", lambda n: verb("train", "features", *self._frozen(n, frozen))
        yield "doctor", "studies", lambda n: verb("doctor", *self.config(n, self.fresh()))
        yield (
            "evaluate",
            "studies",
            lambda n: verb("evaluate", model, set_of(n), "--out", self.fresh(), *judge),
        )
        yield "offsets", "studies", lambda n: verb("evaluate", "offsets", model, set_of(n))
        yield "suppression", "studies", lambda n: verb("evaluate", "suppression", model, set_of(n))
        yield (
            "calibrate",
            "studies",
            lambda n: verb(
                "calibrate",
                model,
                set_of(n),
                "--out",
                self.fresh() / "c.json",
                "--split",
                "validate",
            ),
        )
        yield (
            "compare",
            "studies",
            lambda n: verb("compare", *self._results(n), "--out", self.fresh()),
        )
        yield (
            "probe",
            "studies",
            lambda n: verb("evaluate", "probe", model, set_of(n), "--out", self.fresh(), *judge),
        )
        yield (
            "ground",
            "files",
            lambda n: verb(
                "ground", model, *self._files(n), "--text", "Effusion.", "--out", self.fresh()
            ),
        )
        yield "index", "studies", lambda n: verb("index", model, set_of(n), "--out", self.fresh())
        # Every sentence is a landmark up to 1,000 of them, so that small sets grow in two ways.
        few = ["--set", "landmarks=300"]
        yield (
            " ".join(["index", *few]),
            "studies",
            lambda n: verb("index", model, set_of(n), "--out", self.fresh(), *few),
        )
        yield (
            "search",
            "studies",
            lambda n: verb("search", self.folder / f"index-{n}", "--text", "Effusion."),
        )

    def _frozen(self, size: int, settings: list[str]) -> list[object]:
        return [
            *self.config(size, self.fresh()),
            *settings,
            f"train.features.folder={self.fresh()}",
        ]

    def _results(self, size: int) -> list[Path]:
        return [self.folder / f"results-{size}-{seed}" for seed in (0, 1)]

    def _files(self, size: int) -> list[Path]:
        files = sorted(self.tree(self.sizes[-1]).rglob("*.dcm"))
        return files[: max(size // 20, 1)]


def exponent(sizes: list[int], seconds: list[float]) -> float:
    """Slope of log seconds over log size."""
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


def measure(sizes: list[int], rounds: int, work: Callable[[int], object]) -> list[list[float]]:
    """Processor seconds of each size (rows) in each round; all sizes in turn."""
    work(sizes[0])
    found: list[list[float]] = [[] for _ in sizes]
    for _ in range(rounds):
        for place, size in enumerate(sizes):
            found[place].append(processor(partial(work, size)))
    return found


def row(name: str, grows: str, sizes: list[int], found: list[list[float]]) -> Row:
    """The exponent of the medians, and the lowest and highest of single rounds."""
    middle = [max(median(values), 1e-3) for values in found]
    each = [
        exponent(sizes, [max(s, 1e-3) for s in seconds]) for seconds in zip(*found, strict=True)
    ]
    slope = exponent(sizes, middle)
    measured = f"{slope:.2f} ({min(each):.2f} to {max(each):.2f})"
    note = f"{', '.join(shown(seconds) for seconds in middle)} at three sizes of {grows}"
    return Row(f"`{name}`", f"<= {GOAL}", measured, slope <= GOAL, note)


def main(words: list[str] | None = None) -> int:
    """Make the sets, measure every verb, write each row as soon as it is there."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", type=int, nargs=3, default=[400, 800, 1600], help="studies")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="verbs")
    parser.add_argument("--print", action="store_true", help="leave the page alone")
    parser.add_argument("--page", type=Path, default=REPO / "docs" / "performance.md")
    given = parser.parse_args(words)
    page = Page(None if given.print else given.page, "growth")
    print(machine("torch"), file=sys.stderr)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="medclip-debias-growth-") as folder:
        for name, grows, work in Sets(Path(folder), given.sizes).verbs():
            if given.only and name not in given.only:
                continue
            try:
                found = measure(given.sizes, given.rounds, work)
                page.add(row(name, grows, given.sizes, found))
            except Exception as error:  # one row less is better than no table
                failed += 1
                said = " ".join(str(error).split())[:160]
                page.add(Row(f"`{name}`", f"<= {GOAL}", "not measured", None, said))
    print(f"Not measured, since their work does not grow with a set: {LEFT_OUT}.")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
