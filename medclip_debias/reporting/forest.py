"""Forest plot of a comparison: one small panel a metric, one line a run, zero in the middle.

What it says does not hang on colour: filled and hollow marks, and each run's own mark and line.
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from typing import Any

from medclip_debias.palette import AXIS, GRID, INK, STYLES
from medclip_debias.reporting.plots import lay_out

COLUMNS = 3


def forest(content: Mapping[str, Any]) -> dict[str, bytes]:
    """Draw the differences of ``comparison.json``: a file's content by its kind, SVG and PNG.

    Args:
        content: of `medclip_debias.evaluation.compare.compare`.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    rows = content["rows"]
    labels = [g["label"] for g in content["groups"] if g["label"] != content["baseline"]]
    columns = min(COLUMNS, len(rows))
    lines = math.ceil(len(rows) / columns)
    height = 0.75 + 0.24 * len(labels)
    figure = Figure(
        figsize=(3.0 * columns, height * lines + 0.5), facecolor="white", layout="constrained"
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(lines, columns, squeeze=False)
    for place, row in enumerate(rows):
        line, column = divmod(place, columns)
        _panel(panels[line][column], row, labels, named=column == 0)
    for place in range(len(rows), lines * columns):
        panels[place // columns][place % columns].set_axis_off()
    options: dict[str, dict[str, Any]] = {"svg": {"metadata": {"Date": None}}, "png": {"dpi": 200}}
    drawn = {}
    with mpl.rc_context({"svg.hashsalt": "medclip-debias"}):
        lay_out(figure)
        for kind, more in options.items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, **more)
            drawn[kind] = buffer.getvalue()
    return drawn


def _panel(axes: Any, row: Mapping[str, Any], labels: list[str], *, named: bool) -> None:
    reach = 0.0
    for place, label in enumerate(labels):
        entry = row["groups"][label]
        colour, mark, _ = STYLES[place % len(STYLES)]
        gap, bounds = float(entry["difference"]), entry["difference_interval"]
        if bounds:
            axes.plot(bounds, [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
            reach = max(reach, *(abs(float(bound)) for bound in bounds))
        reach = max(reach, abs(gap))
        axes.plot(
            [gap],
            [place],
            mark,
            color=colour,
            markerfacecolor="white" if entry["verdict"].startswith("not ") else colour,
            markerfacecoloralt="white",
            fillstyle="left" if entry["verdict"].startswith("differs") else "full",
            markersize=6,
            markeredgewidth=1.4,
        )
    axes.axvline(0, color=INK, linewidth=0.9, zorder=0)
    reach = reach * 1.12 or 1.0
    axes.set_xlim(-reach, reach)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    names = labels if named else [""] * len(labels)
    axes.set_yticks(range(len(labels)), names, parse_math=False)
    arrow = (
        "\N{LEFTWARDS ARROW} better" if row["lower_is_better"] else "better \N{RIGHTWARDS ARROW}"
    )
    axes.set_title(row["title"], fontsize=8.5, color=INK, loc="left")
    axes.set_title(arrow, fontsize=7, color=INK, loc="right")
    axes.locator_params(axis="x", nbins=5)
    axes.tick_params(labelsize=7.5, colors=INK, length=3)
    axes.tick_params(axis="y", length=0)
    axes.grid(True, axis="x", color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(AXIS)
