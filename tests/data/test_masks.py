"""Masks: COCO's run lengths, polygons and boxes, against loops that do no arithmetic of ours."""

import json

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from medclip_debias.data.masks import (
    as_coco,
    component_boxes,
    compress,
    decode,
    encode,
    from_coco,
    from_runs,
    polygon_pixels,
    runs_of,
    uncompress,
)
from medclip_debias.data.records import Mask

# What pycocotools 2.0 (`mask.encode` of a Fortran-ordered array) writes for them.
PYCOCOTOOLS = {
    "all outside, 2320 x 2828": (2320, 2828, [6560960], "PVWX6"),
    "all inside, 3 x 4": (3, 4, [0, 12], "0<"),
    "a stripe": (4, 5, [8, 4, 8], "848"),
    "runs that grow and shrink": (50, 40, [700, 1, 90, 4, 5, 900, 300], "le01j23[MPl0W9"),
}

pixels = st.tuples(st.integers(1, 9), st.integers(1, 9)).flatmap(
    lambda shape: st.lists(
        st.booleans(), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]
    ).map(lambda cells: np.array(cells, dtype=bool).reshape(shape))
)


def runs_by_hand(array):
    """Walk down each column and note every change."""
    runs, inside, length = [], False, 0
    for x in range(array.shape[1]):
        for y in range(array.shape[0]):
            if bool(array[y, x]) != inside:
                runs.append(length)
                inside, length = not inside, 0
            length += 1
    return [*runs, length]


@pytest.mark.parametrize(("height", "width", "runs", "text"), PYCOCOTOOLS.values())
def test_texts_of_pycocotools_are_read_and_written(height, width, runs, text):
    assert uncompress(text) == runs
    assert compress(runs) == text
    assert runs_of(Mask(height, width, text)) == runs


@given(pixels)
def test_a_mask_is_its_pixels_column_by_column(array):
    mask = encode(array)
    assert runs_of(mask) == runs_by_hand(array)
    assert np.array_equal(decode(mask), array)
    assert from_coco(json.loads(as_coco(mask))) == from_coco(as_coco(mask)) == mask
    listed = {"size": list(array.shape), "counts": runs_by_hand(array)}
    assert from_coco(listed) == mask


def test_pycocotools_reads_and_writes_the_same():
    """Where it is installed; what it wrote for some arrays stands above."""
    coco = pytest.importorskip("pycocotools.mask")
    rng = np.random.default_rng(0)
    for number in range(150):
        height, width = rng.integers(1, 120, 2)
        array = rng.random((height, width)) < rng.choice([0, 0.01, 0.3, 0.5, 0.99, 1])
        if number % 3 == 0:
            array[:] = False
            y, x = rng.integers(0, height), rng.integers(0, width)
            array[y : y + rng.integers(1, 99), x : x + rng.integers(1, 99)] = True
        theirs = coco.encode(np.asfortranarray(array.astype(np.uint8)))
        ours = encode(array)
        assert ours.counts == theirs["counts"].decode()
        assert [ours.height, ours.width] == theirs["size"]
        assert np.array_equal(coco.decode(json.loads(as_coco(ours))), array)


@given(st.lists(st.integers(0, 400_000_000), max_size=12))
def test_run_lengths_of_any_size_survive(runs):
    assert uncompress(compress(runs)) == runs


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"size": [2, 3], "counts": "6 "}, "holds a character"),
        ({"size": [2, 3], "counts": "7"}, "another number of pixels"),
        ({"size": [2, 3], "counts": "o"}, "is cut off"),
        ({"size": [2, 3], "counts": "oooooooo0"}, "longer than any image"),
        ({"size": [2, 3], "counts": [8, -2]}, "a run of negative length"),
        ({"size": [10**6, 10**6], "counts": [10**12]}, "larger than any image"),
        ({"size": [0, 3], "counts": []}, "has no size"),
        ({"size": [2, True], "counts": [2]}, "has no 'size'"),
        ({"size": [2, 3], "counts": [1.0, 5]}, "has no 'counts'"),
        ([6], "is not 'size' and 'counts'"),
        ("{", "is not readable JSON"),
    ],
)
def test_a_damaged_mask_is_refused(value, said):
    with pytest.raises(ValueError, match=said):
        from_coco(value)


@given(st.text(st.characters(max_codepoint=160), max_size=8))
def test_no_text_crashes_the_reader(text):
    try:
        runs = uncompress(text)
    except ValueError:
        return
    assert all(isinstance(run, int) for run in runs)


def test_runs_may_leave_out_the_last_one_outside_but_not_the_image():
    assert from_runs([1, 2], 2, 3).astype(int).tolist() == [[0, 1, 0], [1, 0, 0]]
    with pytest.raises(ValueError, match="more pixels than its image of 3 x 2"):
        from_runs([3, 4], 2, 3)
    with pytest.raises(ValueError, match="negative"):
        from_runs([3, -1], 2, 3)


@given(pixels)
def test_boxes_are_those_of_the_connected_parts(array):
    labelled, count = ndimage.label(array, structure=np.ones((3, 3)))
    expected = []
    for part in range(1, count + 1):
        ys, xs = np.nonzero(labelled == part)
        size = (np.ptp(xs) + 1, np.ptp(ys) + 1)
        expected.append((float(xs.min()), float(ys.min()), float(size[0]), float(size[1])))
    assert sorted(component_boxes(array)) == sorted(expected)
    tops = [box[1] for box in component_boxes(array)]
    assert tops == sorted(tops)


point = st.tuples(st.integers(-3, 12), st.integers(-3, 12))


@given(st.lists(point, min_size=3, max_size=7))
def test_a_polygon_holds_the_pixels_whose_centres_lie_in_it(corners):
    """As OpenCV tells of one point; on an edge either answer is right."""
    found = polygon_pixels(corners, 8, 9)
    contour = np.array(corners, np.float32)
    for y, x in np.ndindex(8, 9):
        side = cv2.pointPolygonTest(contour, (x + 0.5, y + 0.5), False)
        assert side == 0 or found[y, x] == (side > 0), (x, y)


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 6), st.integers(1, 6))
def test_a_rectangle_covers_what_its_box_covers(x, y, width, height):
    corners = [(x, y), (x + width, y), (x + width, y + height), (x, y + height)]
    found = polygon_pixels(corners, 12, 12)
    assert component_boxes(found) == ((x, y, width, height),)
    assert found.sum() == width * height
