"""The transform to the network's input: exact both ways, true to the pixels, and MONAI's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from medclip_debias.config import PrepareSettings
from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.images import prepare_image, to_square


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
    mapped = geometry.box_to_model(box)
    low, high = (geometry.to_original(corner) for corner in (mapped[:2], mapped[:2] + mapped[2:]))
    np.testing.assert_allclose([*low, *(high - low)], box, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("sides", [(0, 5, 4, 4), (5, 5, 4, 5), (5, 5, 0, 0)])
def test_impossible_sides_are_refused(sides):
    with pytest.raises(ValueError, match=r"side|crop"):
        SquareGeometry(*sides)


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


@pytest.mark.parametrize("resample", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("shape", [(300, 200), (40, 61)])
def test_a_squashed_image_is_pillows_own_resize(shape, resample):
    image = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    how = {"size": 96, "fit": "squash", "resample": resample, "levels": "as_stored"}
    expected = Image.fromarray(image).resize((96, 96), Image.Resampling[resample.upper()])
    np.testing.assert_array_equal(prepare_image(image, PrepareSettings(**how)), expected)


def through_monai(array, size, input_size):
    """Padded, resized and cut by MONAI's transforms, which keep track of the place."""
    import torch
    from monai.data import MetaTensor
    from monai.transforms import CenterSpatialCrop, Compose, Resize, SpatialPad

    side = max(array.shape)
    chain = [
        SpatialPad((side, side), method="symmetric", mode="constant"),
        Resize((size, size), mode="area"),
        CenterSpatialCrop((input_size, input_size)),
    ]
    return Compose(chain)(MetaTensor(torch.from_numpy(array[None].astype(np.float32))))


@pytest.mark.parametrize(
    ("height", "width"), [(300, 200), (200, 300), (257, 123), (640, 640), (61, 400)]
)
@pytest.mark.parametrize(("size", "input_size"), [(128, 96), (96, 96), (201, 101)])
def test_points_and_boxes_agree_with_the_affine_of_monai(height, width, size, input_size):
    seen = through_monai(np.zeros((height, width)), size, input_size)
    geometry = SquareGeometry(height, width, size, input_size)
    # MONAI's affine maps the index (row, column) of a pixel, ours its continuous place (x, y).
    affine = np.linalg.inv(np.asarray(seen.affine, dtype=np.float64))[:2, [0, 1, 3]]
    points = np.random.default_rng(0).uniform(0, [width, height], (50, 2))
    index = np.column_stack([points[:, ::-1] - 0.5, np.ones(50)])
    expected = (index @ affine.T)[:, ::-1] + 0.5
    np.testing.assert_allclose(geometry.to_model(points), expected, atol=1e-9)
    np.testing.assert_allclose(geometry.to_original(expected), points, atol=1e-9)
    boxes = np.column_stack([points[:25], points[25:] - points[:25]])
    expected = np.column_stack([expected[:25], expected[25:] - expected[:25]])
    np.testing.assert_allclose(geometry.box_to_model(boxes), expected, atol=1e-9)


@pytest.mark.parametrize(("height", "width"), [(256, 192), (192, 256), (384, 384)])
def test_pixels_agree_with_monais_where_the_ratio_is_whole(height, width):
    array = np.random.default_rng(1).integers(0, 256, (height, width)).astype(np.uint8)
    size = max(height, width) // 4
    expected = through_monai(array, size, size)[0].numpy()
    assert np.abs(to_square(array, size) - expected).max() <= 0.501  # ours are whole numbers
