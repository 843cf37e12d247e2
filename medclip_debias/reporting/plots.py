"""Plots as SVG data addresses: no file beside the page, no pyplot state."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from typing import Any

from medclip_debias.palette import ACCENT, AXIS, GRID, INK, SECOND


def curve(
    steps: Sequence[float],
    values: Sequence[float | None],
    second: Sequence[float | None] | None = None,
) -> str:
    """Draw a curve over training steps (None leaves a gap), with a dashed second one."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.6, 2.5), facecolor="white", layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    for series, colour, style in ((values, ACCENT, "-"), (second or [], SECOND, "--")):
        if series:
            numbers = [float("nan") if value is None else value for value in series]
            marker = "o" if len(numbers) < 3 else None  # one point makes no line
            axes.plot(steps, numbers, style, color=colour, linewidth=1.4, marker=marker)
    distinct = {value for value in values if value is not None}
    if len(distinct) == 1 and not second:  # a flat line would get an axis around it, below zero too
        axes.set_ylim(0, 2 * max(distinct.pop(), 0) or 1)
    axes.set_xlabel("step", fontsize=8, color=INK)
    axes.tick_params(labelsize=8, colors=INK, length=3)
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(AXIS)
    return _svg(figure)


def reliability(bins: Sequence[Mapping[str, Any]]) -> str:
    """Reliability diagram: share of positives over mean probability, a mark's area its images.

    Args:
        bins: ``images``, ``probability`` and ``positive`` of each, as results.json holds them.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(2.9, 2.7), facecolor="white", layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1], "--", color=AXIS, linewidth=1)
    x, y = ([float(each[key]) for each in bins] for key in ("probability", "positive"))
    most = max(int(each["images"]) for each in bins)
    sizes = [12 + 110 * int(each["images"]) / most for each in bins]
    axes.plot(x, y, color=ACCENT, linewidth=1.2)
    axes.scatter(x, y, s=sizes, color=ACCENT, edgecolor="white", linewidth=0.8, zorder=3)
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("probability given", fontsize=8, color=INK)
    axes.set_ylabel("share with the finding", fontsize=8, color=INK)
    axes.tick_params(labelsize=8, colors=INK, length=3)
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return _svg(figure)


def _svg(figure: Any) -> str:
    """A plot's data address; no date and a fixed salt: equal plots are equal bytes."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "medclip-debias"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return data_address(buffer.getvalue(), "image/svg+xml")


def data_address(content: bytes, kind: str) -> str:
    """``content`` as a ``data:`` address that an ``<img>`` shows."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
