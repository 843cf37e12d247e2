"""Maps measured without their pixels, against the pixels themselves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, currently_in_test_context, given
from hypothesis import strategies as st
from scipy.ndimage import find_objects, label

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.evaluation.metrics import MIDDLE_THRESHOLDS, THRESHOLDS
from medclip_debias.evaluation.upsampled import Upsampled
from medclip_debias.grounding.boxes import box_mask
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.models.region_grid import RegionGrid
from tests.helpers.pixel_metrics import cnr, ious, pointing_game


@st.composite
def cases(draw):
    """An image, its way into a model, a grid of scores (also flat, coarse, mirrored), boxes."""
    height, width = draw(st.integers(3, 70)), draw(st.integers(3, 70))
    size = draw(st.integers(16, 48))
    input_size = draw(st.integers(9, size))
    rows, columns = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    if draw(st.booleans()):
        grid = RegionGrid.patches(rows, columns, float(input_size))
    else:
        grid = RegionGrid(rows, columns, stride=input_size / max(rows, columns), first=0.5)
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    kind = draw(st.sampled_from(["random", "coarse", "flat", "zero", "plateau"]))
    scores = {
        "random": rng.uniform(-1, 1, (rows, columns)),
        "coarse": rng.integers(-4, 5, (rows, columns)) / 20,
        "flat": np.full((rows, columns), 0.35),
        "zero": np.zeros((rows, columns)),
        "plateau": (rng.random((rows, columns)) > 0.6) * 0.5,
    }[kind].astype(np.float32)
    side = st.floats(-5, 80, allow_nan=False)
    boxes = draw(
        st.lists(st.tuples(side, side, st.floats(0, 60), st.floats(0, 60)), min_size=0, max_size=4)
    )
    fit = draw(st.sampled_from(["pad", "crop"]))
    return SquareGeometry(height, width, size, input_size, fit), grid, scores, boxes


def direct(heatmap, mask):
    seen = ~np.isnan(heatmap)
    return heatmap[mask & seen].astype(float), heatmap[~mask & seen].astype(float)


@pytest.mark.parametrize(
    "geometry",
    [
        SquareGeometry(77, 120, 42, 12, "crop"),
        SquareGeometry(196, 185, 16, 12),
        SquareGeometry(33, 222, 28, 14),
    ],
)
def test_a_pixel_whose_centre_is_on_the_very_edge_of_the_input_is_seen_in_both(geometry):
    """There a rounded position falls on either side by chance."""
    grid = RegionGrid.patches(3, 3, float(geometry.input_size))
    heatmap = upsample_to_original(np.eye(3, dtype=np.float32), geometry, grid)
    found = Upsampled(np.eye(3, dtype=np.float32), geometry, grid, [])
    assert found.pixels_outside == np.count_nonzero(~np.isnan(heatmap))


def pixels_of(scores, geometry, grid, **options):
    """The map in double precision, rounded once: what the closed forms follow to the last bit."""
    exact = upsample_to_original(scores, geometry, grid, dtype=np.float64, **options)
    rounded = exact.astype(np.float32)
    # Halfway between two numbers of single precision, the last bit of a sum decides on either.
    half = np.spacing(np.abs(rounded)).astype(np.float64) / 2
    if currently_in_test_context():
        assume(not (np.abs(np.abs(exact - rounded) - half) < 1e-14).any())
    single = upsample_to_original(scores, geometry, grid, **options)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, rounded, rtol=0, atol=2e-7 * max(1, np.abs(scores).max()))
    return rounded


@given(cases())
def test_every_figure_is_that_of_the_pixels(case):
    geometry, grid, scores, boxes = case
    heatmap = pixels_of(scores, geometry, grid)
    mask = box_mask(boxes, geometry.height, geometry.width)
    found = Upsampled(scores, geometry, grid, boxes)
    assert found.area == mask.sum()
    assert found.area - found.pixels_inside == (mask & np.isnan(heatmap)).sum()
    inside, outside = direct(heatmap, mask)
    assert (found.pixels_inside, found.pixels_outside) == (inside.size, outside.size)
    both = np.concatenate([inside, outside])
    if both.size:
        assert found.extremes == (both.min(), both.max())
    thresholds = np.r_[THRESHOLDS, both[:3], [2.0, -2.0]]
    counts = found.count_at_least(thresholds)
    # A pixel that should equal a threshold of 0 may miss it by the last bits of a sum, where
    # float32 does not round them away: then the pixels' own answer is arbitrary.
    unsure = [((both != t) & (np.abs(both - t) < 1e-9)).any() for t in thresholds]
    for values, count in zip((inside, outside), counts, strict=True):
        for t, found_count, doubtful in zip(thresholds, count, unsure, strict=True):
            low, high = ((values >= t + room).sum() for room in (1e-9, -1e-9))
            assert low <= found_count <= high if doubtful else found_count == (values >= t).sum()
    if any(unsure):
        return
    for group in (THRESHOLDS, MIDDLE_THRESHOLDS):
        np.testing.assert_array_equal(found.iou(group), ious(heatmap, mask, group))
    assert found.pointing_game() == pointing_game(heatmap, mask)
    # Rounding the pixels to float32 moves a contrast by about 1e-7 over the spread.
    spread = np.sqrt(inside.var() + outside.var()) if inside.size and outside.size else 0
    tolerance = 1e-6 * (1 + cnr(heatmap, mask)) / max(spread, 1e-3)
    assert found.cnr() == pytest.approx(cnr(heatmap, mask, signed=True), abs=tolerance)


@given(cases(), st.sampled_from([-0.2, 0.0, 0.1, 0.25, 0.35, 0.5]), st.sampled_from([4, 8]))
def test_boxes_are_those_of_the_labelled_pixels(case, threshold, connectivity):
    geometry, grid, scores, _ = case
    heatmap = pixels_of(scores, geometry, grid)
    seen = heatmap[~np.isnan(heatmap)].astype(float)
    assume(not ((seen != threshold) & (np.abs(seen - threshold) < 1e-9)).any())
    with np.errstate(invalid="ignore"):
        numbers, count = label(
            # As float64: a plain number would be rounded to the map's float32 first.
            heatmap >= np.float64(threshold),
            structure=np.ones((3, 3)) if connectivity == 8 else None,
        )
    expected = sorted(
        [x.start, y.start, x.stop - x.start, y.stop - y.start]
        for y, x in find_objects(numbers, count)
    )
    found, peaks = Upsampled(scores, geometry, grid, []).regions_at_least(threshold, connectivity)
    assert sorted(found) == expected
    highest = sorted(heatmap[numbers == n + 1].max() for n in range(count))
    np.testing.assert_allclose(sorted(peaks), highest, atol=1e-6)


def test_a_full_size_map_is_exact_too():
    rng = np.random.default_rng(0)
    geometry = SquareGeometry(1500, 1800, 512, 480)
    grid = RegionGrid(15, 15, stride=32.0, first=0.5)
    scores = rng.uniform(-0.2, 0.7, (15, 15)).astype(np.float32)
    boxes = [[180.5, 240.25, 540, 420], [600, 480, 240.5, 600], [1740, 10, 300, 54]]
    heatmap = pixels_of(scores, geometry, grid, smoothing=1.5)
    mask = box_mask(boxes, 1500, 1800)
    found = Upsampled(scores, geometry, grid, boxes, smoothing=1.5)
    np.testing.assert_array_equal(found.iou(THRESHOLDS), ious(heatmap, mask))
    assert found.pointing_game() == pointing_game(heatmap, mask)
    assert found.cnr() == pytest.approx(cnr(heatmap, mask, signed=True), rel=1e-6)
    low, high = np.nanmin(heatmap), np.nanmax(heatmap)
    for share, value in zip((0.3, 0.5), found.dice((0.3, 0.5)), strict=True):
        cut = heatmap >= low + share * (high - low)
        assert value == pytest.approx(2 * (cut & mask).sum() / (cut.sum() + mask.sum()), rel=1e-5)
    _, count = label(heatmap >= np.float64(0.3), structure=np.ones((3, 3)))
    assert len(found.regions_at_least(0.3)[0]) == count
