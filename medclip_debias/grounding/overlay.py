"""Pictures: a grey radiograph, its heatmap in colour, true boxes, caption and colour bar."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, field_validator

from medclip_debias.config import Settings
from medclip_debias.errors import did_you_mean
from medclip_debias.files import atomic_file
from medclip_debias.grounding.boxes import as_boxes
from medclip_debias.models.interface import MapKind

# Inches of the picture's longer side, and the pixels a side may have before it is thinned out.
LONGEST_SIDE = 4.0
MOST_PIXELS = 1200
# Room for the words of a legend beside a very small image.
SMALLEST_SIDE = 440
BOX_COLOUR = "#35e0ff"
FOUND_COLOUR = "white"
WARNING_COLOUR = "#b91c1c"
NO_COLOUR = "#d4d4d4"  # of the scores below the reference, on the colour bar
GAP = 0.08  # inches between the radiograph and the map beside it
LINE = 0.19  # inches of a line of words

Extent = tuple[float, float, float, float]
Number = TypeVar("Number", bound=np.generic)


class OverlayStyle(Settings):
    """How pictures are drawn (docs/grounding.md, Pictures)."""

    colormap: str = "inferno"
    alpha: float = Field(0.55, ge=0, le=1)  # opacity of the highest score
    contours: tuple[float, ...] = ()  # scores along which lines are drawn
    legend: bool = True  # colour bar, key of the boxes, caption
    beside: bool = True  # with a legend, the radiograph without its map on the left
    max_side: int = Field(1024, ge=0, le=20_000)  # pixels; 0 for the original's

    @field_validator("colormap")
    @classmethod
    def _known(cls, name: str) -> str:
        from matplotlib import colormaps

        if name not in colormaps:
            hint = did_you_mean(name, colormaps)
            raise ValueError(f"matplotlib has no colormap '{name}'{hint}")
        return name

    @field_validator("contours")
    @classmethod
    def _rising(cls, levels: tuple[float, ...]) -> tuple[float, ...]:
        return tuple(sorted(set(levels)))

    def dots(self, height: int, width: int) -> float:
        """Pixels per inch of the picture of an image of this size."""
        side = min(self.max_side or max(height, width), max(height, width))
        return (max(side, SMALLEST_SIDE) if self.legend else side) / LONGEST_SIDE


def write_overlay(
    path: Path,
    image: NDArray[np.integer] | NDArray[np.floating],
    heatmap: NDArray[np.floating],
    *,
    boxes: ArrayLike | Sequence[ArrayLike] = (),
    found: ArrayLike | Sequence[ArrayLike] = (),
    caption: str = "",
    image_extent: Extent | None = None,
    limits: tuple[float, float] | None = None,
    reference: float | None = None,
    names: tuple[str, str] | None = None,
    warning: str = "",
    kind: MapKind = "cosine",
    style: OverlayStyle | None = None,
    dpi: float | None = None,
) -> Path:
    """Write one PNG: ``heatmap`` over ``image``, with the same scale on both axes.

    The colours run over ``limits``, else from the heatmap's lowest to its highest score, and low
    scores are more transparent, so that anatomy stays visible; the colour bar gives the numbers.
    Pixels below ``reference``, and those that the model did not see (NaN), stay grey. Reference
    boxes are drawn in solid lines, found ones in dashed lines, so that they differ without their
    colours too.

    Args:
        path: file to write; its folder is created when missing.
        image: 2-D, high = bright.
        heatmap: ``[height, width]`` in original pixels.
        boxes: true boxes, ``[K, 4]`` of x, y, width, height in original pixels.
        found: boxes that were found, in the same form.
        caption: words under a picture with a legend; none when empty.
        image_extent: left, top, right, bottom of ``image`` in original pixels, where it is
            not the original itself (a padded square, say).
        limits: scores at the ends of the colours, for several pictures on one scale.
        reference: score below which nothing is coloured.
        names: of ``boxes`` and ``found`` in a key under a picture with a legend; None for no key.
        warning: words in red under a picture with a legend; none when empty.
        kind: what the map holds, beside the colour bar.
        style: how it is drawn.
        dpi: pixels per inch; the longer side of the picture is 4 inches. By default `style`'s.
    """
    # Figure and Agg directly: pyplot would keep every figure in a global table.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator
    from PIL import Image

    style = style or OverlayStyle()
    rows, columns = heatmap.shape
    dpi = style.dots(rows, columns) if dpi is None else dpi
    if not style.legend:
        caption, warning, names = "", "", None
    called = names or ("", "")
    drawn: list[tuple[NDArray[np.float64], str, Any, str]] = [
        (as_boxes(boxes), BOX_COLOUR, "-", called[0]),  # type: ignore[arg-type]
        (as_boxes(found), FOUND_COLOUR, (0, (3, 2)), called[1]),  # type: ignore[arg-type]
    ]
    drawn = [each for each in drawn if len(each[0])]
    with_key = names is not None and bool(drawn)

    # Sizes in inches. A very narrow image keeps its shape; only the paper around it grows.
    inch = LONGEST_SIDE / max(rows, columns)
    image_width, image_height = columns * inch, rows * inch
    left = image_width + GAP if style.legend and style.beside else 0.0
    width = max(left + image_width, 2.2 if caption or warning or with_key else 0.4)
    width += 0.8 if style.legend else 0.0
    lines, red = (textwrap.wrap(text, max(int(width * 13), 12)) for text in (caption, warning))
    foot = 0.1 + LINE * len(lines + red) if lines + red else 0.0
    height = max(image_height, 1.0 if style.legend else 0.4) + foot + (0.22 if with_key else 0.0)
    figure = Figure(figsize=(width, height), dpi=dpi, facecolor="white")
    canvas = FigureCanvasAgg(figure)

    def panel(x: float, top: float, wide: float, high: float) -> Any:
        place = (x / width, (height - top - high) / height, wide / width, high / height)
        return figure.add_axes(place)

    most = max(MOST_PIXELS, math.ceil(dpi * LONGEST_SIDE))
    full = (0.0, 0.0, float(columns), float(rows))
    grey, place = thinned(image, *(image_extent or full), most)
    for x in dict.fromkeys((0.0, left)):
        axes = panel(x, 0, image_width, image_height)
        axes.set_axis_off()
        axes.imshow(grey, cmap="gray", extent=place, interpolation="bilinear")
        axes.set(xlim=(0, columns), ylim=(rows, 0))
    small, place = thinned(heatmap, *full, most)
    low, high = limits or value_range(small)
    norm = Normalize(low, high, clip=True)
    hidden = np.isnan(small) if reference is None else ~(small >= reference)
    opacity = np.where(hidden, 0, style.alpha * (0.1 + 0.9 * norm(np.nan_to_num(small))))
    axes.imshow(
        np.nan_to_num(small, nan=low),
        cmap=style.colormap,
        norm=norm,
        alpha=np.clip(opacity, 0, 1),
        extent=place,
        interpolation="nearest",
    )
    _draw_contours(axes, small, place, style.contours)
    keys = [_draw_boxes(axes, *each) for each in drawn]
    axes.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal")
    if style.legend:
        long = min(image_height, 2.4)
        cax = panel(left + image_width + 0.1, 0.03 * long, 0.12, 0.94 * long)
        bar = figure.colorbar(ScalarMappable(norm, style.colormap), cax=cax)
        bar.ax.tick_params(labelsize=7, length=2)
        long_numbers = high - low < 0.05
        if long_numbers:  # as of Grad-CAM: they would push the label off the picture
            bar.ax.yaxis.set_major_locator(MaxNLocator(4))
            bar.ax.yaxis.set_major_formatter("{x:.2g}")
        bar.set_label(kind, fontsize=7, labelpad=0 if long_numbers else None)
        if reference is not None:
            bar.ax.axhspan(low, min(max(reference, low), high), color=NO_COLOUR)
        for level in style.contours:
            if low <= level <= high:
                bar.ax.axhline(level, color="white", linewidth=1.0)
    if with_key:
        anchor = {"loc": "lower left", "bbox_to_anchor": (0.0, foot / height)}
        look: dict[str, Any] = {"fontsize": 7, "frameon": False, "borderpad": 0.1}
        figure.legend(handles=keys, ncols=len(keys), handlelength=2.4, **anchor, **look)
    below = 0.03
    for words, colour in ((red, WARNING_COLOUR), (lines, "black")):
        at = (0.04 / width, below / height)
        # A sentence with two dollar signs is no formula.
        look = {"color": colour, "fontsize": 9, "va": "bottom", "parse_math": False}
        figure.text(*at, "\n".join(words), **look)
        below += LINE * len(words)
    canvas.draw()
    # What was drawn hides nothing behind it: without its opacity the file is half as long.
    picture = Image.fromarray(np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3]))
    with atomic_file(path) as temporary:
        picture.save(temporary, format="png", compress_level=4, dpi=(dpi, dpi))
    return path


def _draw_boxes(axes: Any, boxes: NDArray[np.float64], colour: str, line: Any, name: str) -> Any:
    """Draw boxes with a dark rim; return what the key shows."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    for x, y, w, h in boxes:
        for shade, wide, dashes in (("black", 3.0, "-"), (colour, 1.5, line)):
            axes.add_patch(Rectangle((x, y), w, h, fill=False, ec=shade, lw=wide, ls=dashes))
    rim = [withStroke(linewidth=3.0, foreground="black")]
    return Line2D([], [], color=colour, linestyle=line, linewidth=1.5, label=name, path_effects=rim)


def _draw_contours(
    axes: Any, heatmap: NDArray[np.floating], place: Extent, levels: Sequence[float]
) -> None:
    """Lines at ``levels``; those that the map does not reach are left out."""
    low, high = value_range(heatmap)
    reached = [level for level in levels if low < level < high]
    if not reached or min(heatmap.shape) < 2:
        return
    left, right, bottom, top = place
    rows, columns = heatmap.shape
    x = left + (np.arange(columns) + 0.5) * (right - left) / columns
    y = top + (np.arange(rows) + 0.5) * (bottom - top) / rows
    masked = np.ma.masked_invalid(heatmap)
    for colour, wide in (("black", 2.2), ("white", 1.0)):
        axes.contour(x, y, masked, levels=reached, colors=colour, linewidths=wide)


def value_range(heatmap: NDArray[np.floating]) -> tuple[float, float]:
    """Lowest and highest seen score; a flat or wholly unseen map gets a range of its own."""
    seen = heatmap[~np.isnan(heatmap)]
    if not seen.size:
        return 0.0, 1.0
    low, high = float(seen.min()), float(seen.max())
    return (low, high) if high > low else (low, low + 1e-6)


def thinned(
    array: NDArray[Number],
    left: float,
    top: float,
    right: float,
    bottom: float,
    most: int = MOST_PIXELS,
) -> tuple[NDArray[Number], Extent]:
    """Every n-th pixel of a picture with more than ``most`` a side: drawing 10 megapixels is slow.

    With it the place that it covers as matplotlib wants it: left, right, bottom, top. Each kept
    pixel is the middle of its block, so nothing moves.
    """
    step = -(-max(array.shape) // most)
    offset_row, offset_column = (min(step // 2, side - 1) for side in array.shape)
    kept = array[offset_row::step, offset_column::step]
    across = (right - left) * kept.shape[1] * step / array.shape[1]
    down = (bottom - top) * kept.shape[0] * step / array.shape[0]
    return kept, (left, left + across, top + down, top)


def slug(text: str, length: int = 40) -> str:
    """Turn words into part of a file name.

    >>> slug("Left lower lobe, small effusion.")
    'left-lower-lobe-small-effusion'
    """
    words = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return words[:length].rstrip("-") or "sentence"
