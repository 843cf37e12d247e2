"""Box masks and RoIAlign features against pixel loops and hand-made fields."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.grounding.boxes import box_features, box_mask, visible_boxes
from medclip_debias.models.region_grid import RegionGrid

side = st.floats(-5, 30).map(lambda v: round(v, 3))
boxes_strategy = st.lists(st.tuples(side, side, st.floats(0, 30), st.floats(0, 30)), max_size=4)


@given(boxes=boxes_strategy)
def test_mask_holds_the_pixels_whose_centre_lies_in_a_box(boxes):
    expected = np.zeros((20, 25), dtype=bool)
    for i in range(20):
        for j in range(25):
            expected[i, j] = any(
                x <= j + 0.5 < x + w and y <= i + 0.5 < y + h for x, y, w, h in boxes
            )
    mask = box_mask(boxes, 20, 25)
    # A bound within rounding of a pixel centre may fall either way.
    assert (mask != expected).sum() == 0 or any(
        abs((v - 0.5) % 1 - r) < 1e-9
        for x, y, w, h in boxes
        for v in (x, y, x + w, y + h)
        for r in (0, 1)
    )


def test_visible_boxes_are_cut_at_the_input_and_dropped_outside_it():
    geometry = SquareGeometry(100, 100, 50, 40)  # scale .5, 5 prepared pixels cut on each side
    found = visible_boxes([[0, 0, 50, 50], [0, 0, 9, 9], [60, 60, 20, 10]], geometry)
    np.testing.assert_allclose(found, [[0, 0, 20, 20], [25, 25, 35, 30]])


def sampled_mean(field, x0, y0, x1, y1):
    """RoIAlign's definition in cell units: mean of bilinear samples, ceil(extent) on an axis."""
    rows, columns = field.shape[:2]
    nx, ny = max(int(np.ceil(x1 - x0)), 1), max(int(np.ceil(y1 - y0)), 1)
    total = np.zeros(field.shape[2:])
    for a in range(ny):
        for b in range(nx):
            u = min(max(x0 + (b + 0.5) * (x1 - x0) / nx - 0.5, 0), columns - 1)
            v = min(max(y0 + (a + 0.5) * (y1 - y0) / ny - 0.5, 0), rows - 1)
            for r in range(rows):
                for c in range(columns):
                    total += max(0, 1 - abs(u - c)) * max(0, 1 - abs(v - r)) * field[r, c]
    return total / nx / ny


@pytest.mark.parametrize("grid", [(5, 5), (4, 6)])
@pytest.mark.parametrize("first", [0.5, 8.0])
def test_box_features_equal_a_loop_over_samples(grid, first):
    rng = np.random.default_rng(1)
    rows, columns = grid
    regions = rng.normal(size=(3, rows * columns, 7))
    boxes = []
    for count in (1, 3, 2):
        start = rng.uniform(0, 60, (count, 2))
        boxes.append(np.concatenate([start, start + rng.uniform(2, 35, (count, 2))], axis=1))
    boxes = [np.clip(array, 0, 80) for array in boxes]
    places = RegionGrid(rows, columns, stride=16.0, first=first)
    found = box_features(torch.from_numpy(regions), places, boxes)
    for image in range(3):
        field = regions[image].reshape(rows, columns, 7)
        moved = [(box - first) / 16 + 0.5 for box in boxes[image]]
        expected = np.mean([sampled_mean(field, *box) for box in moved], axis=0)
        np.testing.assert_allclose(found[image].numpy(), expected, atol=1e-10)
