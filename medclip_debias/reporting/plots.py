"""Every plot of the pages, as SVG inside the HTML: its colours follow the page's style.

matplotlib draws with the colours of `medclip_debias.palette`; `inline` gives each of them the name
that `templates/page.css` knows it by, so that one plot reads in light, in dark and on paper.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup, escape

from medclip_debias.palette import ACCENT, AXIS, GRID, INK, PALE, SECOND, STYLES

SMALL, WIDE = (3.6, 2.2), (4.6, 2.7)
"""Of a plot among others, and of one that stands for itself, in inches."""

_NAMES = {
    **{colour.lower(): f"--plot-{place}" for place, (colour, _, _) in enumerate(STYLES)},
    **{INK: "--ink", AXIS: "--axis", GRID: "--grid", ACCENT: "--accent", SECOND: "--second"},
    **{PALE: "--pale", "#ffffff": "--paper", "#000000": "--plot-0", "#555555": "--soft"},
}


def inline(svg: bytes, label: str) -> Markup:
    """A plot as part of a page.

    Args:
        svg: what matplotlib wrote.
        label: what the plot shows, for those who do not see it.
    """
    text = svg.decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    # Nothing lies outside its axes, and a page without url() is plainly one that loads nothing.
    text = re.sub(r'\s+clip-path="[^"]*"|<clipPath.*?</clipPath>', "", text, flags=re.S)
    name = hashlib.sha256(f"{label}{text}".encode()).hexdigest()[:8]
    text = re.sub(r'(\bid="|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"#[0-9a-f]{6}\b", _named, text)
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "sans-serif", text)
    head = re.search(r'viewBox="[^"]*"', text)
    assert head is not None  # matplotlib writes it
    start = f'<svg class="plot" role="img" aria-label="{escape(label)}" {head[0]}'
    return Markup(re.sub(r"<svg [^>]*", lambda _: start, text, count=1).strip())


def _named(match: re.Match[str]) -> str:
    name = _NAMES.get(match[0])
    return f"var({name})" if name else match[0]


def curve(
    steps: Sequence[float],
    values: Sequence[float | None],
    label: str,
    *,
    second: Sequence[float | None] | None = None,
    mark: float | None = None,
) -> Markup:
    """Plot a curve over training steps (None leaves a gap), with a dashed second one.

    Args:
        steps: places.
        values: of the curve.
        label: what it shows.
        second: of the dashed one.
        mark: step of a vertical line.
    """
    figure, axes = _axes(SMALL)
    for series, colour, style in ((values, ACCENT, "-"), (second or [], SECOND, "--")):
        if series:
            numbers = [float("nan") if value is None else value for value in series]
            marker = "o" if len(numbers) < 12 else None  # few points, or one, make no line
            axes.plot(steps, numbers, style, color=colour, linewidth=1.4, marker=marker, ms=3.5)
    distinct = {value for value in values if value is not None}
    if len(distinct) == 1 and not second:  # a flat line would get an axis around it, below zero too
        axes.set_ylim(0, 2 * max(distinct.pop(), 0) or 1)
    if mark is not None:
        axes.axvline(mark, color=SECOND, linewidth=1, linestyle=":")
    axes.set_xlabel("step", fontsize=9, color=INK)
    return inline(svg_of(figure), label)


def reliability(bins: Sequence[Mapping[str, Any]], label: str) -> Markup:
    """Reliability diagram: share of positives over mean probability, a mark's area its images.

    Args:
        bins: ``images``, ``probability`` and ``positive`` of each, as results.json holds them.
        label: what it shows.
    """
    figure, axes = _axes((2.9, 2.7))
    axes.plot([0, 1], [0, 1], "--", color=AXIS, linewidth=1)
    x, y = ([float(each[key]) for each in bins] for key in ("probability", "positive"))
    most = max(int(each["images"]) for each in bins)
    sizes = [12 + 110 * int(each["images"]) / most for each in bins]
    axes.plot(x, y, color=ACCENT, linewidth=1.2)
    axes.scatter(x, y, s=sizes, color=ACCENT, edgecolor="white", linewidth=0.8, zorder=3)
    axes.set_xlim(-0.03, 1.03)
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("probability given", fontsize=9, color=INK)
    axes.set_ylabel("share with the finding", fontsize=9, color=INK)
    return inline(svg_of(figure), label)


def bars(
    edges: Sequence[float],
    counts: Sequence[float],
    label: str,
    *,
    x: str,
    y: str,
    second: Sequence[float] | None = None,
) -> Markup:
    """Histogram: filled ``counts`` between ``edges``, and the outline of a dashed second one.

    Heights are logarithmic: a few rare values would not be seen beside many others.
    """
    figure, axes = _axes(WIDE)
    axes.set_yscale("log")
    # A logarithmic axis has no zero: everything stands on a floor below the lowest count.
    seen = [count for count in (*counts, *(second or ())) if count > 0]
    floor = min(seen, default=1) / 2
    widths = [high - low for low, high in pairwise(edges)]
    heights = [max(count - floor, 0) for count in counts]
    axes.bar(edges[:-1], heights, widths, floor, align="edge", fc=ACCENT, ec="white", lw=0.6)
    if second is not None:
        outline = [max(count, floor) for count in second]
        axes.stairs(outline, edges, baseline=floor, color=SECOND, linestyle="--", linewidth=1.3)
    top = 1.6 * max(seen, default=1)
    axes.set_ylim(floor, top)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    if top >= 100 * floor:  # two powers of ten are labels enough
        axes.yaxis.minorticks_off()
    else:
        axes.yaxis.set_minor_formatter(lambda value, _: _between(value) if value >= 1 else "")
        axes.tick_params(which="minor", labelsize=8.5, labelcolor=INK)
    axes.set_xlim(edges[0], edges[-1])
    if all(edge % 1 == 0.5 for edge in edges):  # bins of whole numbers
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    return inline(svg_of(figure), label)


def _between(value: float) -> str:
    """The label of a place between two powers of ten; not of all eight, which would overlap."""
    label = f"{value:g}"
    return label if label[0] in "2357" else ""


def points(
    x: Sequence[float],
    y: Sequence[float],
    label: str,
    *,
    titles: tuple[str, str],
    best_x: float | None = None,
) -> Markup:
    """Scatter plot with a logarithmic horizontal axis of counts.

    Args:
        x: counts, 1 or more.
        y: values.
        label: what it shows.
        titles: of the axes.
        best_x: place of a vertical line.
    """
    figure, axes = _axes(WIDE)
    axes.scatter(x, y, s=11, color=ACCENT, alpha=0.5, linewidth=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlim(0.8, max(x) * 1.25)
    if best_x is not None:
        axes.axvline(best_x, color=SECOND, linewidth=1, linestyle=":")
    axes.set_xlabel(titles[0], fontsize=9, color=INK)
    axes.set_ylabel(titles[1], fontsize=9, color=INK)
    return inline(svg_of(figure), label)


def levels(names: Sequence[str], values: Sequence[float], label: str, *, x: str) -> Markup:
    """Horizontal bars, one a name."""
    figure, axes = _axes((WIDE[0], 0.5 + 0.24 * max(len(names), 2)))
    places = range(len(names))
    axes.barh(places, values, 0.68, color=ACCENT)
    axes.set_yticks(places, list(names), parse_math=False)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    ends = max((value for value in values if math.isfinite(value)), default=1) or 1
    for place, value in zip(places, values, strict=True):
        axes.text(value + 0.01 * ends, place, f"{value:,.4g}", va="center", fontsize=8, color=INK)
    axes.set_xlim(0, 1.16 * ends)
    axes.set_xlabel(x, fontsize=9, color=INK)
    return inline(svg_of(figure), label)


def _axes(size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure and its axes, plain."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, facecolor="none", layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot(facecolor="none")
    axes.tick_params(labelsize=8.5, colors=INK, length=3)
    axes.tick_params(which="minor", length=0)
    axes.grid(True, color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(AXIS)
    return figure, axes


def lay_out(figure: Any) -> None:
    """Give the parts of a figure their places, once: each `savefig` would draw all of it twice."""
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)
        figure.set_layout_engine(None)


def svg_of(figure: Any) -> bytes:
    """A plot's SVG; no date and a fixed salt: equal plots are equal bytes."""
    import matplotlib as mpl

    buffer = io.BytesIO()
    # Words stay words: found by search, read aloud, in the page's own letters.
    with mpl.rc_context({"svg.hashsalt": "medclip-debias", "svg.fonttype": "none"}):
        lay_out(figure)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()


def data_address(content: bytes, kind: str) -> str:
    """``content`` as a ``data:`` address that an ``<img>`` shows."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"
