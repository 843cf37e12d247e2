"""Thresholded boxes against a flood fill written out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from medclip_debias.errors import UserError
from medclip_debias.grounding.regions import threshold_regions

# Few distinct scores, so that regions of many shapes, equal means and NaN all occur.
scores = st.sampled_from([np.nan, -1.0, 0.0, 0.25, 0.5, 0.75, 1.0])
maps = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=scores)


def flood(heatmap, threshold, connectivity):
    """Every connected set of pixels at or above the threshold, in reading order."""
    height, width = heatmap.shape
    left = {(i, j) for i in range(height) for j in range(width) if heatmap[i, j] >= threshold}
    steps = [(a, b) for a in (-1, 0, 1) for b in (-1, 0, 1) if connectivity == 8 or not a * b]
    found = []
    while left:
        todo, region = [min(left)], set()
        while todo:
            i, j = todo.pop()
            if (i, j) in left:
                left.remove((i, j))
                region.add((i, j))
                todo += [(i + a, j + b) for a, b in steps]
        found.append(region)
    return found


@given(
    heatmap=maps,
    threshold=st.sampled_from([-1.0, 0.1, 0.5, 1.0, 2.0]),
    connectivity=st.sampled_from([4, 8]),
    min_area=st.integers(1, 4),
)
def test_regions_equal_a_flood_fill(heatmap, threshold, connectivity, min_area):
    found = threshold_regions(heatmap, threshold, min_area=min_area, connectivity=connectivity)
    expected = []
    for region in flood(heatmap, threshold, connectivity):
        if len(region) < min_area:
            continue
        rows, columns = zip(*sorted(region), strict=True)
        values = [float(heatmap[place]) for place in sorted(region)]
        left, top = min(columns), min(rows)
        box = (left, top, max(columns) + 1 - left, max(rows) + 1 - top)
        expected.append((sum(values) / len(values), max(values), len(values), box))
    expected.sort(key=lambda region: -region[0])
    assert [(r.mean, r.peak, r.area, r.box) for r in found] == expected


def test_bad_thresholds_are_refused():
    for threshold, connectivity, words in ((np.nan, 8, "threshold"), (0.5, 6, "must be 4 or 8")):
        with pytest.raises(UserError, match=words):
            threshold_regions(np.zeros((2, 2)), threshold, connectivity=connectivity)
