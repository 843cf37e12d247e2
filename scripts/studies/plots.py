"""Series with means and spread over seeds: colours, markers and dashes together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from medclip_debias.experiments.plots import intervals, panels
from medclip_debias.palette import STYLES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = [
    "STYLES",
    "intervals",
    "labels",
    "line",
    "means_with_bars",
    "means_with_seeds",
    "panels",
]


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


def labels(axes: Axes, x: str, y: str, legend: bool = True) -> None:
    """Name the axes; show the legend."""
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    if legend:
        axes.legend(fontsize=7, frameon=False)
