"""Pictures: a grey radiograph, its heatmap in colour, true boxes, caption and colour bar."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from medclip_debias.files import atomic_file
from medclip_debias.grounding.boxes import as_boxes

# Inches of the picture's longer side, and the pixels a side may have before it is thinned out.
LONGEST_SIDE = 4.0
MOST_PIXELS = 1200
BOX_COLOUR = "#35e0ff"

Extent = tuple[float, float, float, float]
Number = TypeVar("Number", bound=np.generic)


def write_overlay(
    path: Path,
    image: NDArray[np.integer] | NDArray[np.floating],
    heatmap: NDArray[np.floating],
    *,
    boxes: ArrayLike | Sequence[ArrayLike] = (),
    caption: str = "",
    image_extent: Extent | None = None,
    alpha: float = 0.55,
    colour_bar: bool = True,
    dpi: int = 110,
) -> Path:
    """Write one PNG: ``heatmap`` over ``image``, with the same scale on both axes.

    The colours run from the heatmap's lowest to its highest score, and low scores are more
    transparent, so that anatomy stays visible; the colour bar gives the figures. Pixels
    that the model did not see (NaN) stay grey.

    Args:
        path: file to write; its folder is made when missing.
        image: 2-D, high = bright.
        heatmap: ``[height, width]`` in original pixels.
        boxes: true boxes, ``[K, 4]`` of x, y, width, height in original pixels.
        caption: words under the picture; none when empty.
        image_extent: left, top, right, bottom of ``image`` in original pixels, where it is
            not the original itself (a padded square, say).
        alpha: opacity of the highest score.
        colour_bar: draw the scale of the scores beside the picture.
        dpi: pixels per inch; the longer side of the picture is 4 inches.
    """
    # Figure and Agg directly: pyplot would keep every figure in a global table.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    height, width = heatmap.shape
    inch = LONGEST_SIDE / max(height, width)
    # A very narrow image keeps its shape; only the paper around it grows to hold the caption.
    picture_w, picture_h = width * inch, height * inch
    paper_w = max(picture_w, 2.2 if caption else 0.4) + (0.8 if colour_bar else 0.0)
    lines = textwrap.wrap(caption, max(int(paper_w * 13), 12)) if caption else []
    foot = 0.1 + 0.19 * len(lines) if lines else 0.0
    paper_h = max(picture_h, 0.4) + foot
    figure = Figure(figsize=(paper_w, paper_h), dpi=dpi, facecolor="white")
    FigureCanvasAgg(figure)

    axes = figure.add_axes((0, 1 - picture_h / paper_h, picture_w / paper_w, picture_h / paper_h))
    axes.set_axis_off()
    shown, place = thinned(image, *(image_extent or (0.0, 0.0, float(width), float(height))))
    axes.imshow(shown, cmap="gray", extent=place, interpolation="bilinear")
    small, place = thinned(heatmap, 0.0, 0.0, float(width), float(height))
    low, high = value_range(small)
    norm = Normalize(low, high)
    opacity = np.where(np.isnan(small), 0, alpha * (0.1 + 0.9 * norm(np.nan_to_num(small))))
    axes.imshow(
        np.nan_to_num(small, nan=low),
        cmap="inferno",
        norm=norm,
        alpha=np.clip(opacity, 0, 1),
        extent=place,
        interpolation="nearest",
    )
    for x, y, w, h in as_boxes(boxes):  # type: ignore[arg-type]
        for colour, line in (("black", 3.0), (BOX_COLOUR, 1.5)):
            axes.add_patch(Rectangle((x, y), w, h, fill=False, edgecolor=colour, linewidth=line))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_aspect("equal")
    if colour_bar:
        bar_h = min(picture_h, 2.4)
        place = (
            (picture_w + 0.1) / paper_w,
            1 - (picture_h + bar_h * 0.94) / 2 / paper_h,
            0.12 / paper_w,
            bar_h * 0.94 / paper_h,
        )
        bar = figure.colorbar(ScalarMappable(norm, "inferno"), cax=figure.add_axes(place))
        bar.ax.tick_params(labelsize=7, length=2)
        bar.set_label("cosine", fontsize=7)
    if lines:
        figure.text(0.04 / paper_w, 0.03 / paper_h, "\n".join(lines), fontsize=9, va="bottom")
    with atomic_file(path) as temporary:
        figure.savefig(temporary, format="png")
    return path


def value_range(heatmap: NDArray[np.floating]) -> tuple[float, float]:
    """Lowest and highest seen score; a flat or wholly unseen map gets a range of its own."""
    seen = heatmap[~np.isnan(heatmap)]
    if not seen.size:
        return 0.0, 1.0
    low, high = float(seen.min()), float(seen.max())
    return (low, high) if high > low else (low, low + 1e-6)


def thinned(
    array: NDArray[Number], left: float, top: float, right: float, bottom: float
) -> tuple[NDArray[Number], tuple[float, float, float, float]]:
    """Keep every n-th pixel of a large picture: drawing a 10-megapixel one takes seconds.

    Args:
        array: 2-D picture.
        left: where its first column starts.
        top: where its first row starts.
        right: where its last column ends.
        bottom: where its last row ends.

    Returns:
        The smaller picture, and the place it covers as matplotlib wants it: left, right,
        bottom, top. Each kept pixel is the middle of its block, so nothing moves.
    """
    step = -(-max(array.shape) // MOST_PIXELS)
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
