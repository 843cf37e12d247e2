"""Plots that read in grey and for the colour-blind: colours, markers and dashes together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from medclip_debias.palette import GRID, STYLES

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


def line(axes: Axes, x: Any, y: Any, style: int, label: str | None = None, **more: Any) -> None:
    """Draw one series in style number ``style``."""
    colour, marker, dashes = STYLES[style % len(STYLES)]
    settings: dict[str, Any] = {
        "color": colour,
        "marker": marker,
        "linestyle": dashes,
        "linewidth": 1.4,
        "markersize": 4,
        "label": label,
    }
    axes.plot(x, y, **(settings | more))


def means_with_bars(
    axes: Axes,
    x: Sequence[float],
    values: Sequence[Sequence[float]],
    style: int,
    label: str,
    aside: float = 0.0,
) -> None:
    """A line through the means of the seeds, with bars of one standard deviation.

    Args:
        axes: to draw on.
        x: places.
        values: those of every seed at each place.
        style: number of colour, marker and dashes.
        label: for the legend.
        aside: how far to move the line, so that the bars of several do not lie on one another;
            a share of the range of ``x``, or of its logarithm where the axis has one.
    """
    import numpy as np

    places = _means(axes, x, values, style, label, aside)
    if all(len(each) > 1 for each in values):
        spread = [np.std(each, ddof=1) for each in values]
        means = [np.mean(each) for each in values]
        colour = STYLES[style % len(STYLES)][0]
        axes.errorbar(places, means, spread, fmt="none", ecolor=colour, lw=0.8, capsize=2)


def means_with_seeds(
    axes: Axes,
    x: Sequence[float],
    values: Sequence[Sequence[float]],
    style: int,
    label: str,
    aside: float = 0.0,
) -> None:
    """As `means_with_bars`, with a hollow mark for each seed: for what falls into two heaps."""
    places = _means(axes, x, values, style, label, aside)
    spots = [place for place, each in zip(places, values, strict=True) for _ in each]
    seeds = [value for each in values for value in each]
    hollow: dict[str, Any] = {"linestyle": "none", "markerfacecolor": "none"}
    line(axes, spots, seeds, style, markersize=5, markeredgewidth=0.7, **hollow)


def _means(
    axes: Axes,
    x: Sequence[float],
    values: Sequence[Sequence[float]],
    style: int,
    label: str,
    aside: float,
) -> Any:
    """Draw the line through the means; the places it has been moved to."""
    import numpy as np

    places = np.asarray(x, dtype=float)
    if axes.get_xscale() == "log":
        places = places * (places.max() / places.min()) ** aside
    else:
        places = places + aside * (places.max() - places.min())
    line(axes, places, [np.mean(each) for each in values], style, label)
    return places


def intervals(
    axes: Axes,
    found: Mapping[Any, tuple[float, tuple[float, float], float]],
    rows: Sequence[Any],
    names: bool,
) -> None:
    """Differences with their intervals, first on top; a dot is filled where p < .05.

    Args:
        axes: to draw on; the line at 0 is the baseline.
        found: name, then difference, interval and p.
        rows: names from the top, the same for panels side by side, which show them once; a name
            that ``found`` lacks keeps its place and is said not to have been measured.
        names: whether the vertical axis has them.

    Raises:
        ValueError: ``found`` has a name that is none of ``rows``.
    """
    if unknown := [str(name) for name in found if name not in rows]:
        raise ValueError(f"no place for {', '.join(unknown)}")
    for height, name in enumerate(reversed(rows)):
        if name in found:
            value, ends, p = found[name]
            axes.plot(ends, [height, height], color="#555555", linewidth=1.2)
            filled = "#000000" if p < 0.05 else "#ffffff"
            axes.plot(value, height, "o", markersize=4.5, color="#000000", markerfacecolor=filled)
        else:
            absent: dict[str, Any] = {"fontsize": 7, "va": "center", "color": "#555555"}
            axes.annotate("not measured", (0, height), (4, 0), textcoords="offset points", **absent)
    axes.axvline(0, color="#D55E00", linewidth=1)
    axes.locator_params(axis="x", nbins=5)  # more, and small differences overlap
    axes.set_yticks(range(len(rows)), [str(name) for name in reversed(rows)] if names else [])


def labels(axes: Axes, x: str, y: str, legend: bool = True) -> None:
    """Name the axes; show the legend."""
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    if legend:
        axes.legend(fontsize=7, frameon=False)
