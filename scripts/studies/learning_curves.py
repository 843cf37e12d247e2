"""A study's learning curves: each arm's means at every length of training that its grids hold.

Run as ``python scripts/studies/learning_curves.py docs/studies/NAME.json GRID --methods NAME ...``.
Read from the grids that ``grids_page.py`` stores and that are called ``GRID_STEPS``, as
``positives_phantom_300`` and ``positives_phantom_1000`` are; written to ``NAME-length.svg`` beside
them. Every length is a training of its own, not a moment of a longer one. Bars are 95% over seeds;
a length with one seed has none.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import COMPARED
from medclip_debias.experiments.grid import ONLY
from medclip_debias.files import read_json

TITLES = {metric.key: metric.title for metric in COMPARED}
SHOWN = ("zero_shot.mean_auc", "zero_shot.balanced_accuracy", "retrieval.recall")


@dataclass(frozen=True)
class Point:
    """Mean of an arm after ``steps``, with its 95% over seeds if there are several."""

    steps: int
    mean: float
    interval: tuple[float, float] | None


def curve(grids: Mapping[str, Any], name: str, method: str, metric: str) -> list[Point]:
    """The points of one arm, the shortest training first.

    Args:
        grids: content of the study's JSON file.
        name: of the grids, without ``_STEPS``.
        method: the arm.
        metric: key of the outcome.

    Raises:
        UserError: no grid of this name has the arm.
    """
    points = []
    for grid, content in grids.items():
        length = re.fullmatch(rf"{re.escape(name)}_(\d+)", grid)
        own = content["means"].get(ONLY, {}).get(method) if length else None
        if length and own:
            found = own[metric]
            bars = None if found["interval"] is None else tuple(found["interval"])
            points.append(Point(int(length[1]), found["mean"], bars))
    if not points:
        raise UserError(f"no grid {name}_STEPS of this study has an arm '{method}'.")
    return sorted(points, key=lambda point: point.steps)


def plot(grids: Mapping[str, Any], name: str, methods: Sequence[str], path: Path) -> None:
    """Write a panel for each of `SHOWN`, with a line for each method.

    Raises:
        UserError: no grid has one of the methods.
    """
    from matplotlib import rc_context

    from medclip_debias.files import atomic_file
    from medclip_debias.palette import STYLES
    from studies.plots import line, panels

    figure, axes = panels(len(SHOWN), [TITLES[metric] for metric in SHOWN])
    for axis, metric in zip(axes, SHOWN, strict=True):
        axis.set_xscale("log")
        lengths = set()
        for style, method in enumerate(methods):
            points = curve(grids, name, method, metric)
            places = [point.steps * 1.03**style for point in points]  # bars beside one another
            line(axis, places, [point.mean for point in points], style, method)
            for place, point in zip(places, points, strict=True):
                if point.interval:
                    colour = STYLES[style % len(STYLES)][0]
                    axis.plot([place] * 2, point.interval, color=colour, linewidth=0.8)
            lengths |= {point.steps for point in points}
        axis.set_xticks(sorted(lengths), [f"{steps:,}" for steps in sorted(lengths)])
        axis.minorticks_off()
        axis.set_xlabel("training steps", fontsize=8)
    axes[0].legend(fontsize=8, frameon=False, loc="lower right")
    with atomic_file(path) as temporary, rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(temporary, format="svg", metadata={"Date": None})


def main() -> None:
    """Read the command line, draw the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store", type=Path, help="the study's JSON file")
    parser.add_argument("name", help="of the grids, without _STEPS")
    parser.add_argument("--methods", nargs="+", required=True)
    options = parser.parse_args()
    out = options.store.with_name(f"{options.store.stem}-length.svg")
    try:
        grids = read_json(options.store, "run scripts/studies/grids_page.py to write it")
        plot(grids, options.name, options.methods, out)
    except UserError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
