"""Plots that read in grey and for the colour-blind: colours, markers and dashes together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from medclip_debias.evaluation.statistics import ALPHA
from medclip_debias.palette import GRID

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def panels(count: int, titles: Sequence[str] = (), rows: int = 1) -> tuple[Figure, list[Axes]]:
    """``count`` panels with plain axes, row by row; the last of ``rows`` may be shorter."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = -(-count // rows)
    figure = Figure(figsize=(4.4 * columns, 3.4 * rows), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in axes[count:]:
        spare.remove()
    axes = axes[:count]
    for place, one in enumerate(axes):
        one.grid(True, color=GRID, linewidth=0.7)
        one.set_axisbelow(True)
        one.tick_params(labelsize=8)
        for side in ("top", "right"):
            one.spines[side].set_visible(False)
        if place < len(titles):
            one.set_title(titles[place], fontsize=9, loc="left")
    return figure, axes


def intervals(
    axes: Axes,
    found: Mapping[Any, tuple[float, tuple[float, float] | None, float]],
    rows: Sequence[Any],
    names: bool,
) -> None:
    """Differences with their intervals, first on top; a dot is filled where p is at most .05."""
    if unknown := [str(name) for name in found if name not in rows]:
        raise ValueError(f"no place for {', '.join(unknown)}")
    for height, name in enumerate(reversed(rows)):
        if name in found:
            value, ends, p = found[name]
            if ends is not None:
                axes.plot(ends, [height, height], color="#555555", linewidth=1.2)
            filled = "#000000" if p <= ALPHA else "#ffffff"
            axes.plot(value, height, "o", markersize=4.5, color="#000000", markerfacecolor=filled)
        else:
            absent: dict[str, Any] = {"fontsize": 7, "va": "center", "color": "#555555"}
            axes.annotate("not measured", (0, height), (4, 0), textcoords="offset points", **absent)
    axes.axvline(0, color="#D55E00", linewidth=1)
    axes.locator_params(axis="x", nbins=5)  # more, and small differences overlap
    axes.set_yticks(range(len(rows)), [str(name) for name in reversed(rows)] if names else [])
