"""A curve as SVG without matplotlib, whose import alone takes longer than a live page may.

It stands in for `medclip_debias.reporting.plots.curve`, which draws those of a finished report, and
has its colours by the names that `templates/page.css` gives them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from markupsafe import Markup, escape

WIDTH, HEIGHT = 460, 250
LEFT, RIGHT, TOP, BOTTOM = 54, 12, 10, 38  # margins

Range = tuple[float, float]


def light_curve(
    steps: Sequence[float],
    values: Sequence[float | None],
    label: str,
    *,
    second: Sequence[float | None] | None = None,
    mark: float | None = None,
) -> Markup:
    """Draw a curve over training steps (None leaves a gap), with a dashed second one.

    Args:
        steps: places.
        values: of the curve.
        label: what it shows.
        second: of the dashed one.
        mark: step of a vertical line.
    """
    series = [(values, "accent", ""), (second or (), "second", ' stroke-dasharray="5 3"')]
    shown = [value for each, _, _ in series for value in each if value is not None]
    across = _widened(min(steps, default=0.0), max(steps, default=1.0))
    low, high = min(shown, default=0.0), max(shown, default=1.0)
    # Around a flat line there would be an axis of its own, below zero too.
    up = (0.0, 2 * max(low, 0) or 1.0) if low == high else (low, high)
    parts = [*_grid(across, up)]
    for numbers, name, dashes in series:
        colour = f"var(--{name})"
        for run in _runs(steps, numbers):
            places = [_place(x, y, across, up) for x, y in run]
            line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            look = f'fill="none" stroke="{colour}" stroke-width="1.8"{dashes}'
            parts.append(f'<polyline points="{line}" {look}/>')
            for x, y in places if len(places) < 12 else ():  # few points, or one, make no line
                parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
    if mark is not None:
        at = _place(mark, up[0], across, up)[0]
        look = 'stroke="var(--second)" stroke-dasharray="2 3"'
        parts.append(f'<path class="mark" d="M{at:.1f} {TOP}V{HEIGHT - BOTTOM}" {look}/>')
    return Markup(
        f'<svg class="plot" role="img" aria-label="{escape(label)}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-size="13">{"".join(parts)}</svg>'
    )


def _place(x: float, y: float, across: Range, up: Range) -> tuple[float, float]:
    """Where a point stands; a twentieth of the height stays free above and below."""
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    share = (y - up[0]) / (up[1] - up[0])
    return (
        LEFT + wide * (x - across[0]) / (across[1] - across[0]),
        TOP + tall * (0.05 + 0.9 * (1 - share)),
    )


def _grid(across: Range, up: Range) -> Iterator[str]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    for value in ticks(*up):
        y = _place(across[0], value, across, up)[1]
        yield f'<path d="M{LEFT} {y:.1f}H{right}" stroke="var(--grid)"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.6g}</text>'
    for value in ticks(*across):
        x = _place(value, up[0], across, up)[0]
        yield f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="var(--grid)"/>'
        yield f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{value:.6g}</text>'
    yield f'<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="var(--axis)"/>'
    middle = (LEFT + right) / 2
    yield f'<text x="{middle:.0f}" y="{HEIGHT - 6}" text-anchor="middle">step</text>'


def _runs(
    steps: Sequence[float], values: Sequence[float | None]
) -> Iterator[list[tuple[float, float]]]:
    """The points between two gaps."""
    run: list[tuple[float, float]] = []
    for step, value in zip(steps, values, strict=False):
        if value is not None:
            run.append((step, value))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _widened(low: float, high: float) -> Range:
    return (low, high) if high > low else (low - 1.0, high + 1.0)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round numbers in ``[low, high]``, at most ``most``: multiples of 1, 2 or 5 of a power of ten.

    >>> ticks(0, 1), ticks(25, 150)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [50.0, 100.0, 150.0])
    """
    rough = (high - low) / (most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(k * power for k in (1, 2, 5, 10) if k * power >= rough * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    # Rounded to the step's own digits: 3 * 0.1 is not 0.3.
    digits = max(0, 1 - math.floor(math.log10(step)))
    return [round(number * step, digits) for number in range(first, last + 1)]
