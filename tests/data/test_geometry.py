"""The transform to the network's input: exact both ways, and true to the pixels."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from medclip_debias.config import PrepareSettings
from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.images import prepare_image


def to_original(geometry, box):
    """The box of the original image between two corners that go back as points do."""
    low, high = (geometry.to_original(corner) for corner in (box[:2], box[:2] + box[2:]))
    return np.concatenate([low, high - low])


@st.composite
def geometries(draw, fit="pad"):
    side = st.one_of(st.integers(1, 8), st.integers(9, 600), st.integers(2000, 20_000))
    size = draw(st.integers(16, 1024))
    return SquareGeometry(draw(side), draw(side), size, draw(st.integers(1, size)), fit)


@given(
    st.sampled_from(["pad", "crop", "squash"]).flatmap(geometries),
    st.lists(st.floats(-1, 2), min_size=4, max_size=4),
)
def test_a_box_also_one_partly_outside_is_mapped_to_the_model_and_back(geometry, part):
    box = np.array(part) * ([geometry.width, geometry.height] * 2)
    back = to_original(geometry, geometry.box_to_model(box))
    np.testing.assert_allclose(back, box, rtol=1e-9, atol=1e-6)


@given(geometries())
def test_pad_centres_the_image_within_one_pixel(geometry):
    for pad, length in ((geometry.pad_x, geometry.width), (geometry.pad_y, geometry.height)):
        after = geometry.sides[0] - length - pad
        assert pad >= 0
        assert 0 <= after - pad <= 1


@given(geometries())
def test_the_padded_square_fills_the_prepared_image(geometry):
    corner = np.array([-geometry.pad_x, -geometry.pad_y])
    low = geometry.to_model(corner) + geometry.crop
    high = geometry.to_model(corner + geometry.sides) + geometry.crop
    np.testing.assert_allclose(low, 0, atol=1e-9)
    np.testing.assert_allclose(high, geometry.size, rtol=1e-9)


def test_arrays_of_boxes_keep_their_shape():
    boxes = np.arange(24, dtype=float).reshape(2, 3, 4)
    geometry = SquareGeometry(30, 50, 64, 48)
    mapped = geometry.box_to_model(boxes)
    assert mapped.shape == boxes.shape
    np.testing.assert_allclose(mapped[1, 2], geometry.box_to_model(boxes[1, 2]))


@pytest.mark.parametrize(
    ("height", "width"), [(300, 200), (200, 300), (257, 123), (64, 64), (20, 33), (900, 1400)]
)
@pytest.mark.parametrize("size", [64, 201])
def test_a_drawn_rectangle_lands_where_the_box_says(height, width, size):
    x, y, w, h = width // 5, height // 4, width // 3, height // 2
    image = np.zeros((height, width), dtype=np.float32)
    image[y : y + h, x : x + w] = 1000
    prepared = prepare_image(image, PrepareSettings(size=size, clip=(0, 100)))
    expected = SquareGeometry(height, width, size, size).box_to_model([x, y, w, h])
    rows, columns = np.nonzero(prepared >= 128)
    found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    corners = [*expected[:2], *(expected[:2] + expected[2:])]
    assert np.abs(np.array(found) - corners).max() <= 1


@pytest.mark.parametrize("sides", [(0, 5, 4, 4), (5, 5, 4, 5), (5, 5, 0, 0)])
def test_impossible_sides_are_refused(sides):
    with pytest.raises(ValueError, match=r"side|crop"):
        SquareGeometry(*sides)


@given(geometries("crop"))
def test_a_cut_follows_its_closed_form_and_fills_the_prepared_image(geometry):
    short = min(geometry.width, geometry.height)
    left, top = -geometry.pad_x, -geometry.pad_y
    assert left >= 0
    assert top >= 0
    assert 0 <= left - (geometry.width - short - left) <= 1  # centred within one pixel
    assert 0 <= top - (geometry.height - short - top) <= 1
    scale = geometry.size / short
    crop = (geometry.size - geometry.input_size) // 2
    for x, y in ((left, top), (left + short, top + short), (0, 0)):
        expected = [scale * (x - left) - crop, scale * (y - top) - crop]
        np.testing.assert_allclose(geometry.to_model([x, y]), expected, atol=1e-6)


@pytest.mark.parametrize("resample", ["area", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("fit", ["pad", "crop", "squash"])
@pytest.mark.parametrize(("height", "width"), [(257, 323), (40, 61)])
def test_a_rectangle_lands_where_the_box_says_for_every_fit_and_filter(
    height, width, fit, resample
):
    x, y, w, h = width // 3, height // 3, width // 4, height // 4
    image = np.zeros((height, width), dtype=np.float32)
    image[y : y + h, x : x + w] = 1000
    settings = PrepareSettings(size=96, clip=(0, 100), fit=fit, resample=resample)
    mass = prepare_image(image, settings).astype(float)
    box = SquareGeometry(height, width, 96, 96, fit).box_to_model([x, y, w, h])
    centre = np.arange(96) + 0.5
    found = [(mass.sum(axis) @ centre) / mass.sum() for axis in (0, 1)]
    np.testing.assert_allclose(found, box[:2] + box[2:] / 2, atol=0.1)


@given(
    st.tuples(st.integers(1, 4000), st.integers(1, 4000)),
    st.integers(16, 1024),
    st.data(),
    st.lists(st.floats(-1, 2), min_size=4, max_size=4),
)
def test_a_squashed_image_has_a_scale_for_each_axis(shape, size, data, part):
    height, width = shape
    geometry = SquareGeometry(height, width, size, data.draw(st.integers(1, size)), "squash")
    x, y, w, h = (value * n for value, n in zip(part, (width, height) * 2, strict=True))
    cut = (size - geometry.input_size) // 2
    x_scale, y_scale = size / width, size / height
    expected = [x * x_scale - cut, y * y_scale - cut, w * x_scale, h * y_scale]
    mapped = geometry.box_to_model([x, y, w, h])
    np.testing.assert_allclose(mapped, expected, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("resample", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("shape", [(300, 200), (40, 61)])
def test_a_squashed_image_is_pillows_own_resize(shape, resample):
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    how = {"size": 96, "fit": "squash", "resample": resample, "levels": "as_stored"}
    expected = Image.fromarray(image).resize((96, 96), Image.Resampling[resample.upper()])
    np.testing.assert_array_equal(prepare_image(image, PrepareSettings(**how)), expected)
