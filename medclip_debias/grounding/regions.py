"""Boxes out of a heatmap: the connected regions whose scores reach a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import UserError

if TYPE_CHECKING:
    from medclip_debias.grounding.suppression import Verdict

Connectivity = Literal[4, 8]


@dataclass(frozen=True)
class ScoredRegion:
    """One connected region of a heatmap at or above a threshold.

    Attributes:
        box: smallest x, y, width, height that holds the region, in original pixels.
        mean: mean score of its pixels.
        peak: highest score of its pixels.
        area: pixels in it (not the area of its box).
        confidence: that it shows the sentence, in [0, 1]; None where no rule of suppression
            (`medclip_debias.grounding.suppression`) was asked.
    """

    box: tuple[float, float, float, float]
    mean: float
    peak: float
    area: int
    confidence: float | None = None


def threshold_regions(
    heatmap: NDArray[np.floating],
    threshold: float,
    *,
    min_area: float = 1.0,
    connectivity: Connectivity = 8,
) -> list[ScoredRegion]:
    """Connected regions of ``heatmap >= threshold``, highest mean score first.

    Regions of equal mean come in reading order of their first pixel, so that the same map always
    gives the same list. Coordinates are continuous: pixel (row i, column j) covers
    ``[j, j + 1] x [i, i + 1]``, so the box of that one pixel is ``(j, i, 1, 1)``.

    Args:
        heatmap: ``[height, width]`` in original pixels; NaN belongs to no region.
        threshold: lowest score of a region.
        min_area: pixels that a region must have.
        connectivity: 8 joins pixels that touch at a corner; 4 wants a common side.

    >>> (one,) = threshold_regions(np.array([[0.0, 0.9, 0.8], [np.nan, 0.0, 0.0]]), 0.5)
    >>> one.box, one.area
    ((1.0, 0.0, 2.0, 1.0), 2)
    """
    from scipy.ndimage import find_objects, label

    if math.isnan(threshold):
        raise UserError("the threshold of boxes is not a number; give one such as 0.3.")
    if connectivity not in (4, 8):
        raise UserError(f"connectivity must be 4 or 8, got {connectivity}.")
    heatmap = np.asarray(heatmap)
    if heatmap.ndim != 2:
        raise ValueError(f"expected a heatmap [height, width], got shape {heatmap.shape}")
    # A comparison with NaN is False.
    structure = np.ones((3, 3), dtype=int) if connectivity == 8 else None
    numbers, count = label(heatmap >= threshold, structure=structure)
    regions = []
    for number, (rows, columns) in enumerate(find_objects(numbers, count), start=1):
        scores = heatmap[rows, columns][numbers[rows, columns] == number].astype(np.float64)
        if scores.size < min_area:
            continue
        width, height = columns.stop - columns.start, rows.stop - rows.start
        box = (float(columns.start), float(rows.start), float(width), float(height))
        regions.append(ScoredRegion(box, float(scores.mean()), float(scores.max()), scores.size))
    # Labels are given in reading order, and sorting keeps the order of equals.
    return sorted(regions, key=lambda region: -region.mean)


def boxes_of_share(
    heatmap: NDArray[np.floating],
    share: float,
    verdict: Verdict | None = None,
    *,
    min_area: float = 1.0,
    connectivity: Connectivity = 8,
) -> list[ScoredRegion]:
    """Zero, one or many boxes for a sentence, highest confidence first.

    The map is cut by `threshold_regions` at ``share``, in (0, 1], of the way from its lowest to its
    highest value; one of a single value, as Grad-CAM's may be, points nowhere and has no box. Nor
    has a sentence that is not in the image, by ``verdict``. A box's confidence is the probability
    that the image shows the sentence times how far up the map's range its highest pixel is.
    """
    if not 0 < share <= 1:
        raise UserError(f"the share of a map's range must be in (0, 1], got {share}.")
    if verdict is not None and not verdict.there:
        return []
    low, high = float(np.nanmin(heatmap)), float(np.nanmax(heatmap))
    if low == high:
        return []
    threshold, reach = low + share * (high - low), high - low
    regions = threshold_regions(heatmap, threshold, min_area=min_area, connectivity=connectivity)
    if verdict is not None:
        sure = verdict.probability
        regions = [replace(one, confidence=sure * (one.peak - low) / reach) for one in regions]
    return sorted(regions, key=lambda one: -one.peak)
