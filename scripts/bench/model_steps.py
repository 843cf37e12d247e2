"""Seconds of a training step of every arm of a grid, in turn: the column beside its figures.

    OMP_NUM_THREADS=1 python scripts/bench/model_steps.py experiments/models_openi

Each arm trains a few steps in each round, all arms in turn; the first steps of a training are left
out. The ratio to the grid's baseline is the median of the rounds' ratios, so that other work on the
machine counts little.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")

import typer
from common import machine

from medclip_debias.config import validate
from medclip_debias.experiments.grid import Run, read_grid, runs
from medclip_debias.named_settings import config_file
from medclip_debias.training.settings import RunSettings
from medclip_debias.training.train import train

LEFT_OUT = 6  # steps at the start: caches fill, memory is asked for


def step_seconds(run: Run, steps: int) -> float:
    """Median seconds of a step of ``run``, in a folder that is gone afterwards."""
    times: list[float] = []
    content = run.content | {"train": {**run.content["train"], "steps": steps}}
    with tempfile.TemporaryDirectory() as folder:
        settings = validate(RunSettings, content | {"out": folder}, run.method)
        train(settings, progress=lambda *_: times.append(time.perf_counter()), say=lambda _: None)
    gaps = [after - before for before, after in pairwise(times)]
    return median(gaps[LEFT_OUT:])


def main(name: str, rounds: int = 3, steps: int = 20) -> None:
    """Measure every arm and print the table."""
    if steps <= LEFT_OUT + 1:
        sys.exit(f"--steps must be above {LEFT_OUT + 1}, which are left out")
    grid = read_grid(Path(config_file(name)))
    arms = {run.method: run for run in runs(grid) if run.seed == grid.seeds[0]}
    found: dict[str, list[float]] = {method: [] for method in arms}
    print(machine("torch"), file=sys.stderr)
    for _ in range(rounds):
        for method, run in arms.items():
            found[method].append(step_seconds(run, steps))
    base = found[grid.baseline]
    print("| arm | ms a step | times the first |\n| --- | ---: | ---: |")
    for method, own in found.items():
        ratios = sorted(a / b for a, b in zip(own, base, strict=True))
        spread = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"| {method} | {1000 * median(own):.0f} | {spread} |")


if __name__ == "__main__":
    typer.run(main)
