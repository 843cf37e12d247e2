"""Series with means and spread over seeds: colours, markers and dashes together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from medclip_debias.experiments.experiment import Row
from medclip_debias.palette import STYLES
from medclip_debias.reporting.plots import panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["line", "lines", "panels"]


def line(axes: Axes, x: Any, y: Any, style: int, label: str | None = None, **more: Any) -> None:
    """Draw one series in style number ``style``."""
    colour, marker, dashes = STYLES[style % len(STYLES)]
    settings: dict[str, Any] = {"color": colour, "marker": marker, "linestyle": dashes}
    settings |= {"linewidth": 1.4, "markersize": 4, "label": label}
    axes.plot(x, y, **(settings | more))


def lines(
    shown: Mapping[str, tuple[Sequence[Row], str]], x: str, series: str, *, log: bool = False
) -> Figure:
    """Panels with a line for each ``series`` over ``x``: mean over the rows, with one sd.

    ``shown`` has the title of a panel, its rows and the name of the number.
    """
    figure, axes = panels(len(shown), list(shown))
    for one, (rows, name) in zip(axes, shown.values(), strict=True):
        places = sorted({row[x] for row in rows})
        for style, label in enumerate(dict.fromkeys(row[series] for row in rows)):
            own = {p: [r[name] for r in rows if (r[series], r[x]) == (label, p)] for p in places}
            own = {place: values for place, values in own.items() if values}
            line(one, list(own), [np.mean(v) for v in own.values()], style, str(label))
            for place, values in own.items():
                if len(values) > 1:
                    colour, sd = STYLES[style % len(STYLES)][0], np.std(values, ddof=1)
                    one.errorbar([place], [np.mean(values)], [sd], color=colour, lw=0.7, capsize=2)
        if log:
            one.set_xscale("log")
            one.set_xticks(places, [f"{place:g}" for place in places])
            one.minorticks_off()
        one.set_xlabel(x, fontsize=8)
    axes[0].legend(fontsize=7, frameon=False)
    return figure
