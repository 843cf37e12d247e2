"""Boxes out of a heatmap: the connected regions whose scores reach a threshold."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import UserError

Connectivity = Literal[4, 8]


@dataclass(frozen=True)
class ScoredRegion:
    """One connected region of a heatmap at or above a threshold.

    Attributes:
        box: smallest x, y, width, height that holds the region, in original pixels.
        mean: mean score of its pixels.
        peak: highest score of its pixels.
        area: pixels in it (not the area of its box).
    """

    box: tuple[float, float, float, float]
    mean: float
    peak: float
    area: int


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
        threshold: lowest score of a region, on the heatmap's own scale.
        min_area: pixels that a region must have to be kept.
        connectivity: 8 joins pixels that touch at a corner; 4 wants a common side.

    Raises:
        UserError: the threshold is no number, or the connectivity is neither 4 nor 8.

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
    found = []
    for number, (rows, columns) in enumerate(find_objects(numbers, count), start=1):
        scores = heatmap[rows, columns][numbers[rows, columns] == number].astype(np.float64)
        if scores.size < min_area:
            continue
        width, height = columns.stop - columns.start, rows.stop - rows.start
        box = (float(columns.start), float(rows.start), float(width), float(height))
        found.append(ScoredRegion(box, float(scores.mean()), float(scores.max()), scores.size))
    # Labels are given in reading order, and sorting keeps the order of equals.
    return sorted(found, key=lambda region: -region.mean)
