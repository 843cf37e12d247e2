"""Heatmaps against a plain loop and closed forms."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.grounding.heatmaps import smooth, upsample_to_original
from medclip_debias.models.region_grid import RegionGrid


def by_loop(scores, geometry, stride, first):
    """The definition, one pixel at a time: locate, clamp, mix the four nearest centres."""
    rows, columns = scores.shape
    side = geometry.input_size
    result = np.full((geometry.height, geometry.width), np.nan)
    pixels = np.mgrid[: geometry.width, : geometry.height].T + 0.5
    places = geometry.to_model(pixels).tolist()
    for i in range(geometry.height):
        for j in range(geometry.width):
            x, y = places[i][j]
            if not (0 <= x <= side and 0 <= y <= side):
                continue
            u = min(max((x - first) / stride, 0), columns - 1)
            v = min(max((y - first) / stride, 0), rows - 1)
            total = 0.0
            for r in range(rows):
                if abs(v - r) >= 1:
                    continue
                for c in range(columns):
                    weight = max(0, 1 - abs(u - c)) * (1 - abs(v - r))
                    total += weight * scores[r, c]
            result[i, j] = total
    return result


@pytest.mark.parametrize("shape", [(37, 61), (61, 37), (1, 1), (90, 12)])
@pytest.mark.parametrize("cells", [(4, 4), (3, 5), (1, 1)])
@pytest.mark.parametrize(("sizes", "first"), [((32, 28), 0.5), ((64, 48), 4.0)])
def test_equals_a_loop_over_pixels(shape, cells, sizes, first):
    geometry = SquareGeometry(*shape, *sizes)
    scores = np.random.default_rng(0).uniform(-1, 1, cells)
    grid = RegionGrid(*cells, stride=8.0, first=first)
    result = upsample_to_original(scores, geometry, grid)
    assert result.dtype == np.float32
    np.testing.assert_allclose(result, by_loop(scores, geometry, 8.0, first), atol=2e-6)


def test_smoothing_keeps_a_flat_map_and_spreads_a_peak_like_a_gaussian():
    np.testing.assert_allclose(smooth(np.full((6, 6), 0.3), 1.0), 0.3)
    peak = np.zeros((21, 21))
    peak[10, 10] = 1
    blurred = smooth(peak, 1.5)
    np.testing.assert_allclose(blurred.sum(), 1, atol=1e-6)
    np.testing.assert_allclose(blurred[10, 12] / blurred[10, 10], math.exp(-4 / 4.5), rtol=1e-6)
    geometry = SquareGeometry(21, 21, 21, 21)
    np.testing.assert_allclose(
        upsample_to_original(peak, geometry, RegionGrid.patches(21, 21, 21), smoothing=1.5),
        blurred,
        atol=1e-6,
    )


@given(
    shape=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    size=st.integers(1, 160),
    data=st.data(),
)
def test_a_pixel_is_nan_exactly_when_its_centre_was_not_seen(shape, size, data):
    height, width = shape
    side = data.draw(st.integers(1, size))
    geometry = SquareGeometry(height, width, size, side)
    heat = upsample_to_original(np.ones((2, 2)), geometry, RegionGrid.patches(2, 2, side))

    def seen(place, pad):
        position = Fraction(size, max(shape)) * (place + Fraction(1, 2) + pad)
        return 0 <= position - (size - side) // 2 <= side

    across = [seen(j, (max(shape) - width) // 2) for j in range(width)]
    down = [seen(i, (max(shape) - height) // 2) for i in range(height)]
    np.testing.assert_array_equal(~np.isnan(heat), np.outer(down, across))
