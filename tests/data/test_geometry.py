"""The transform to the network's input, both ways and on pixels (MONAI's: tests/test_monai.py)."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from medclip_debias.config import PrepareSettings
from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.images import prepare_image
from medclip_debias.data.images.radiograph import Radiograph


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
    mass = prepare_image(Radiograph.of(image), settings).astype(float)
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
    found = prepare_image(Radiograph.of(image), PrepareSettings(**how))
    np.testing.assert_array_equal(found, expected)
