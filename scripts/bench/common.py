"""What the timing scripts share: generated radiographs, medians in turn, and the tables."""

from __future__ import annotations

import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "helpers"))

from dicom_files import write_radiograph

HEIGHT, WIDTH = 3056, 2544
ROUNDS = 5


def picture(seed: int) -> np.ndarray:
    """Smooth shapes with grain over the range of 12 bits, as large as a real radiograph."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:HEIGHT, :WIDTH].astype(np.float32)
    fx, fy = rng.uniform(250, 500, 2)
    values = 1900 + 1100 * np.sin(x / fx) * np.cos(y / fy) + rng.normal(0, 40, y.shape)
    return values.clip(0, 4095).astype(np.uint16)


def write_dicom(
    path: Path, array: np.ndarray, *, windowed: bool = True, kind: str = "MONOCHROME1"
) -> None:
    """Write a 12-bit DICOM file, uncompressed, as the large archives hold them."""
    window = {"WindowCenter": "2000", "WindowWidth": "3500"} if windowed else {}
    bits = {"BitsStored": 12, "HighBit": 11}
    write_radiograph(path, array, PhotometricInterpretation=kind, **bits, **window)


def in_turn(
    ways: Mapping[str, Callable[[], float]], rounds: int = ROUNDS, budget: float = float("inf")
) -> dict[str, list[float]]:
    """Seconds of each way in each round; all take turns, in turned order every second one.

    A round before the first is not counted: it fills caches, imports, and builds tables. After
    ``budget`` seconds no further round begins, once one is there.
    """
    began = time.perf_counter()
    for way in ways.values():
        way()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        if number and time.perf_counter() - began > budget:
            break
        for name in list(ways)[:: -1 if number % 2 else 1]:
            found[name].append(ways[name]())
    return found


def timed(work: Callable[[], object]) -> Callable[[], float]:
    """A function that does ``work`` and returns its seconds by the clock."""

    def way() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return way


@dataclass(frozen=True)
class Row:
    """One line of a table with goals; ``what`` is its key, ``met`` None where there is no goal."""

    what: str
    goal: str
    measured: str
    met: bool | None
    note: str = ""

    def __str__(self) -> str:
        verdict = {None: "-", True: "met", False: "**missed**"}[self.met]
        cells = (self.what, self.goal or "-", self.measured, verdict, self.note)
        return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


HEAD = "| what | goal | measured | | note |\n| --- | --- | --- | --- | --- |"


def ratio(what: str, ours: list[float], theirs: list[float], goal: float, note: str = "") -> Row:
    """How many times as long the others take: the median and range of the rounds' ratios."""
    each = [b / a for a, b in zip(ours, theirs, strict=True)]
    low, middle, high = min(each), median(each), max(each)
    measured = f"{middle:.2f} ({low:.2f} to {high:.2f}) times, {shown(median(ours))} against "
    measured += f"{shown(median(theirs))}{short(each)}"
    return Row(what, f">= {goal:g} times", measured, middle >= goal, note)


def within(what: str, seconds: list[float], goal: float, note: str = "") -> Row:
    """Seconds by the clock: the median and range of the rounds."""
    measured = f"{shown(median(seconds))} ({shown(min(seconds))} to {shown(max(seconds))})"
    return Row(what, f"< {goal:g} s", measured + short(seconds), median(seconds) < goal, note)


def short(values: list[float]) -> str:
    """Say that there are fewer rounds than there should be."""
    return "" if len(values) >= ROUNDS else f", {len(values)} of {ROUNDS} rounds"


def shown(seconds: float) -> str:
    """Seconds, or milliseconds where they are few."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.3g} ms"


def measure(rows: Callable[[], Iterable[Row]], what: str, goal: str = "") -> int:
    """Print rows as they are measured; 1 where one cannot be: one less is better than none."""
    try:
        for row in rows():
            print(row, flush=True)
    except Exception as error:
        traceback.print_exc()
        print(unmeasured(what, goal, error), flush=True)
        return 1
    return 0


def unmeasured(what: str, goal: str, error: Exception) -> Row:
    said = " ".join(str(error).split()) or type(error).__name__
    return Row(what, goal, "not measured", None, said[:160])


def title(rows: Callable[..., object]) -> str:
    """What the rows of a function are of: the first words of what it says of itself."""
    return (rows.__doc__ or rows.__name__).split(":")[0].rstrip(".")


def machine(*packages: str) -> str:
    """What a table was measured on, in a few words: cores, load, versions; no names."""
    from importlib.metadata import version

    load = os.getloadavg()[0]
    names = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"{os.cpu_count()} cores, {platform.machine()}, load {load:.1f} at the start, {names}"
