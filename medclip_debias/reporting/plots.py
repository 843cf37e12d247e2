"""Every plot of the pages, as SVG inside the HTML: its colours follow the page's style.

matplotlib draws with the colours of `medclip_debias.palette`; `inline` gives each of them the name
that `templates/page.css` knows it by, so that one plot reads in light, in dark and on paper.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup, escape

from medclip_debias.palette import ACCENT, AXIS, GRID, INK, PALE, SECOND, STYLES

SMALL, WIDE = (3.6, 2.2), (4.6, 2.7)
"""Of a plot among others, and of one that stands for itself, in inches."""
FOREST_COLUMNS = 3

_NAMES = {
    **{colour.lower(): f"--plot-{place}" for place, (colour, _, _) in enumerate(STYLES)},
    **{INK: "--ink", AXIS: "--axis", GRID: "--grid", ACCENT: "--accent", SECOND: "--second"},
    **{PALE: "--pale", "#ffffff": "--paper", "#000000": "--plot-0", "#555555": "--soft"},
}


def inline(svg: bytes, label: str) -> Markup:
    """A plot that matplotlib wrote as part of a page; ``label`` is for those who do not see it."""
    text = svg.decode("utf-8")
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.S)
    # Nothing lies outside its axes, and a page without url() is plainly one that loads nothing.
    text = re.sub(r'\s+clip-path="[^"]*"|<clipPath.*?</clipPath>', "", text, flags=re.S)
    name = hashlib.sha256(f"{label}{text}".encode()).hexdigest()[:8]
    text = re.sub(r'(\bid="|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(
        r"#[0-9a-f]{6}\b", lambda m: f"var({_NAMES[m[0]]})" if m[0] in _NAMES else m[0], text
    )
    text = re.sub(r"'DejaVu Sans'[^;\"]*", "sans-serif", text)
    head = re.search(r'viewBox="[^"]*"', text)
    assert head is not None  # matplotlib writes it
    start = f'<svg class="plot" role="img" aria-label="{escape(label)}" {head[0]}'
    return Markup(re.sub(r"<svg [^>]*", lambda _: start, text, count=1).strip())


def curve(
    steps: Sequence[float],
    values: Sequence[float | None],
    label: str,
    *,
    second: Sequence[float | None] | None = None,
    mark: float | None = None,
) -> Markup:
    """A curve over training steps, None a gap; a dashed second one, a vertical line at ``mark``."""
    figure, axes = _axes(SMALL)
    for series, style, colour in ((values, "-", ACCENT), (second, "--", SECOND)):
        if series is not None:
            numbers = np.array(series, dtype=float)
            marker = "o" if len(numbers) < 12 else None  # few points, or one, make no line
            axes.plot(steps, numbers, style, color=colour, linewidth=1.4, marker=marker, ms=3.5)
    distinct = {value for value in values if value is not None}
    if len(distinct) == 1 and not second:  # a flat line would get an axis around it, beyond zero
        axes.set_ylim(*sorted((0, 2 * distinct.pop() or 1)))
    if mark is not None:
        axes.axvline(mark, color=SECOND, linewidth=1, linestyle=":")
    return _drawn(figure, axes, label, "step")


def reliability(bins: Sequence[Mapping[str, Any]], label: str) -> Markup:
    """Reliability diagram: share of positives over mean probability, a mark's area its images."""
    figure, axes = _axes((2.9, 2.7))
    axes.plot([0, 1], [0, 1], "--", color=AXIS, linewidth=1)
    images, x, y = (
        [float(each[key]) for each in bins] for key in ("images", "probability", "positive")
    )
    sizes = [12 + 110 * count / max(images) for count in images]
    axes.plot(x, y, color=ACCENT, linewidth=1.2)
    axes.scatter(x, y, s=sizes, color=ACCENT, edgecolor="white", linewidth=0.8, zorder=3)
    axes.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    return _drawn(figure, axes, label, "probability given", "share with the finding")


def bars(
    edges: Sequence[float],
    counts: Sequence[float],
    label: str,
    *,
    x: str,
    y: str,
    second: Sequence[float] | None = None,
) -> Markup:
    """Histogram on a logarithmic axis: filled ``counts``, and a dashed outline of a second one."""
    figure, axes = _axes(WIDE)
    axes.set_yscale("log")
    # A logarithmic axis has no zero: everything stands on a floor below the lowest count.
    positive = [count for count in (*counts, *(second or ())) if count > 0]
    floor, top = min(positive, default=1) / 2, 1.6 * max(positive, default=1)
    heights = [max(count - floor, 0) for count in counts]
    widths = np.diff(edges)
    axes.bar(edges[:-1], heights, widths, floor, align="edge", fc=ACCENT, ec="white", lw=0.6)
    if second is not None:
        outline = np.maximum(second, floor)
        axes.stairs(outline, edges, baseline=floor, color=SECOND, linestyle="--", linewidth=1.3)
    axes.set_ylim(floor, top)
    axes.yaxis.set_major_formatter("{x:g}")
    # Two powers of ten are labels enough; of fewer some others, as all eight would overlap.
    few = ("",) if top >= 100 * floor else ("2", "3", "5", "7")
    axes.yaxis.set_minor_formatter(
        lambda value, _: f"{value:g}" if value >= 1 and f"{value:g}"[0] in few else ""
    )
    axes.tick_params(which="minor", labelsize=8.5, labelcolor=INK)
    axes.set_xlim(edges[0], edges[-1])
    if all(edge % 1 == 0.5 for edge in edges):  # bins of whole numbers
        axes.xaxis.get_major_locator().set_params(integer=True)
    return _drawn(figure, axes, label, x, y)


def points(x: Sequence[float], y: Sequence[float], label: str, titles: tuple[str, str]) -> Markup:
    """Scatter plot over a logarithmic axis of counts, 1 or more; ``titles`` of both axes."""
    figure, axes = _axes(WIDE)
    axes.scatter(x, y, s=11, color=ACCENT, alpha=0.5, linewidth=0)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value >= 1 else "")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlim(0.8, max(x) * 1.25)
    return _drawn(figure, axes, label, *titles)


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
    return _drawn(figure, axes, label, x)


def _axes(size: tuple[float, float]) -> tuple[Any, Any]:
    """A figure and its axes, plain."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, facecolor="none", layout="constrained")
    FigureCanvasSVG(figure)
    axes = figure.add_subplot(facecolor="none")
    axes.tick_params(which="minor", length=0)
    axes.grid(True, color=GRID, linewidth=0.7)
    _style(axes, 8.5, ("top", "right"))
    return figure, axes


def _style(axes: Any, size: float, hidden: Sequence[str]) -> None:
    axes.tick_params(labelsize=size, colors=INK, length=3)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side not in hidden)
        spine.set_color(AXIS)


def _drawn(figure: Any, axes: Any, label: str, x: str, y: str = "") -> Markup:
    axes.set_xlabel(x, fontsize=9, color=INK)
    axes.set_ylabel(y, fontsize=9, color=INK)
    # Words stay words: found by search, read aloud, in the page's letters.
    return inline(drawn_as("svg", figure, {"svg.fonttype": "none"}), label)


def drawn_as(
    kind: str, figure: Any, style: Mapping[str, Any] | None = None, **options: Any
) -> bytes:
    """A plot as SVG or PNG; without a date and with a fixed salt equal plots are equal bytes."""
    import matplotlib as mpl

    buffer, metadata = io.BytesIO(), {"svg": {"Date": None}, "png": {"Software": None}}[kind]
    with mpl.rc_context({"svg.hashsalt": "medclip-debias", **(style or {})}):
        # The parts get their places once: each `savefig` would draw all of it twice.
        if (layout := figure.get_layout_engine()) is not None:
            layout.execute(figure)
            figure.set_layout_engine(None)
        figure.savefig(buffer, format=kind, metadata=metadata, **options)
    return buffer.getvalue()


# ---------------------------------------------------------------------------- differences

Mark = tuple[float, Sequence[float] | None, str]
"""A difference, its interval, and how much of its mark is filled: full, left or none."""


def panels(count: int, titles: Sequence[str] = (), rows: int = 1) -> tuple[Any, list[Any]]:
    """A figure and ``count`` panels, row by row; the last of ``rows`` may be shorter."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = -(-count // rows)
    figure = Figure(figsize=(4.4 * columns, 3.4 * rows), facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    every = list(figure.subplots(rows, columns, squeeze=False).flat)
    for spare in every[count:]:
        spare.remove()
    for place, axes in enumerate(every[:count]):
        axes.grid(True, color=GRID, linewidth=0.7)
        axes.set_title(titles[place] if titles else "", fontsize=9, loc="left")
        _style(axes, 8, ("top", "right"))
    return figure, every[:count]


def intervals(
    axes: Any,
    marks: Mapping[Any, Mark],
    rows: Sequence[Any],
    *,
    named: bool,
    styles: Sequence[tuple[str, str, Any]] = STYLES[:1],
) -> None:
    """Differences with their intervals around a line at 0, the first of ``rows`` on top."""
    if unknown := [str(name) for name in marks if name not in rows]:
        raise ValueError(f"no place for {', '.join(unknown)}")
    for place, name in enumerate(rows):
        if name not in marks:
            absent = {"fontsize": 7, "va": "center", "color": INK}
            axes.annotate("not measured", (0, place), (4, 0), textcoords="offset points", **absent)
            continue
        (value, bounds, fill), (colour, mark, _) = marks[name], styles[place % len(styles)]
        if bounds is not None:
            axes.plot(bounds, [place, place], color=colour, linewidth=1.6, solid_capstyle="butt")
        axes.plot(
            [value],
            [place],
            mark,
            color=colour,
            markerfacecolor="#ffffff" if fill == "none" else colour,
            markerfacecoloralt="#ffffff",
            fillstyle="left" if fill == "left" else "full",
            markersize=6,
            markeredgewidth=1.4,
        )
    axes.axvline(0, color=INK, linewidth=0.9, zorder=0)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    words = [str(name) if named else "" for name in rows]
    axes.set_yticks(range(len(rows)), words, parse_math=False)
    axes.locator_params(axis="x", nbins=5)  # more, and small differences overlap


def forest(content: Mapping[str, Any]) -> dict[str, bytes]:
    """The differences of ``comparison.json`` as SVG and PNG; none of it hangs on colour alone."""
    labels = [g["label"] for g in content["groups"] if g["label"] != content["baseline"]]
    lines = -(-len(content["rows"]) // FOREST_COLUMNS)
    figure, every = panels(len(content["rows"]), rows=lines)
    columns = -(-len(every) // lines)
    figure.set_size_inches(3.0 * columns, (0.75 + 0.24 * len(labels)) * lines + 0.5)
    figure.get_layout_engine().set(w_pad=0.12)
    for place, (axes, row) in enumerate(zip(every, content["rows"], strict=True)):
        marks = {}
        for label in labels:
            entry = row["groups"][label]
            fill = {"not": "none", "differs": "left"}.get(entry["verdict"].split(" ")[0], "full")
            marks[label] = float(entry["difference"]), entry["difference_interval"], fill
        intervals(axes, marks, labels, named=place % columns == 0, styles=STYLES)
        ends = (
            abs(float(end)) for value, two, _ in marks.values() for end in (value, *(two or ()))
        )
        reach = max(ends, default=0) * 1.12 or 1.0
        axes.set_xlim(-reach, reach)
        lower = row["lower_is_better"]
        arrow = "\N{LEFTWARDS ARROW} better" if lower else "better \N{RIGHTWARDS ARROW}"
        axes.set_title(row["title"], fontsize=8.5, color=INK, loc="left")
        axes.set_title(arrow, fontsize=7, color=INK, loc="right")
        axes.grid(visible=False, axis="y")
        _style(axes, 7.5, ("top", "right", "left"))
        axes.tick_params(axis="y", length=0)
    return {"svg": drawn_as("svg", figure), "png": drawn_as("png", figure, dpi=200)}
