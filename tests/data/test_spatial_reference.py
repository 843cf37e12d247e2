"""MONAI's invertible transforms say the same as our closed form: boxes, pixels and the way back."""

import numpy as np
import pytest

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.images import to_square
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.models.region_grid import RegionGrid

SHAPES = [(300, 200), (200, 300), (257, 123), (640, 640), (61, 400)]
SIZES = [(128, 96), (96, 96), (201, 101)]


def chain(height, width, size, input_size, mode="area"):
    from monai.transforms import CenterSpatialCrop, Compose, Resize, SpatialPad

    side = max(height, width)
    return Compose(
        [
            SpatialPad((side, side), method="symmetric", mode="constant"),
            Resize((size, size), mode=mode),
            CenterSpatialCrop((input_size, input_size)),
        ]
    )


def through(transforms, array):
    import torch
    from monai.data import MetaTensor

    return transforms(MetaTensor(torch.from_numpy(array[None].astype(np.float32))))


@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize(("size", "input_size"), SIZES)
def test_points_and_boxes_agree_with_the_affine_of_monai(height, width, size, input_size):
    seen = through(chain(height, width, size, input_size), np.zeros((height, width)))
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
def test_pixels_agree_where_the_ratio_is_whole(height, width):
    array = np.random.default_rng(1).integers(0, 256, (height, width)).astype(np.uint8)
    size = max(height, width) // 4
    expected = through(chain(height, width, size, size), array)[0].numpy()
    assert np.abs(to_square(array, size) - expected).max() <= 0.501  # ours are whole numbers


@pytest.mark.parametrize(("height", "width"), [(300, 200), (257, 333)])
def test_smooth_pictures_agree_at_any_ratio(height, width):
    y, x = np.mgrid[:height, :width]
    array = np.rint(120 + 60 * np.sin(x / 40) + 60 * np.cos(y / 50)).astype(np.uint8)
    size = 96
    # Between whole ratios MONAI's "area" averages whole pixels, ours weighs parts of them.
    expected = through(chain(height, width, size, size), array)[0].numpy()
    geometry = SquareGeometry(height, width, size, size)
    left, top = np.ceil(geometry.to_model([0, 0])).astype(int) + 1
    inner = np.s_[top : size - top, left : size - left]
    assert np.abs(to_square(array, size)[inner] - expected[inner]).max() <= 4


@pytest.mark.parametrize(("height", "width"), SHAPES[:3])
def test_a_marked_region_goes_back_to_the_same_place(height, width):
    geometry = SquareGeometry(height, width, 128, 96)
    transforms = chain(height, width, 128, 96, mode="bilinear")
    seen = through(transforms, np.zeros((height, width)))
    seen[0, 30:70, 20:60] = 1
    rows, columns = np.nonzero(transforms.inverse(seen)[0].numpy() > 0.5)
    found = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    corners = geometry.to_original([[20, 30], [60, 70]])
    expected = np.clip(corners, 0, [width, height]).ravel()
    assert np.abs(np.array(found) - expected).max() <= 1


@pytest.mark.parametrize(("height", "width"), SHAPES)
@pytest.mark.parametrize(("size", "input_size"), SIZES)
def test_heatmaps_go_back_as_they_do_in_monai(height, width, size, input_size):
    """Region scores, raised to the model's input by torch, then to the original by MONAI."""
    import torch

    cells = 6
    y, x = np.mgrid[:cells, :cells]
    scores = 0.7 * x - 1.3 * y  # a plane, which no interpolation bends
    transforms = chain(height, width, size, input_size, mode="bilinear")
    seen = through(transforms, np.zeros((height, width)))
    raised = torch.nn.functional.interpolate(
        torch.from_numpy(scores)[None, None].float(), (input_size, input_size), mode="bilinear"
    )
    seen[:] = raised[0]
    expected = transforms.inverse(seen)[0].numpy()
    geometry = SquareGeometry(height, width, size, input_size)
    grid = RegionGrid.patches(cells, cells, input_size)
    found = upsample_to_original(scores, geometry, grid)
    assert found.shape == expected.shape == (height, width)
    # Half a cell from the edge ours is constant, and MONAI mixes in the zeros around the crop.
    edge = input_size / cells / 2 + 2
    pixels = np.stack(np.meshgrid(np.arange(width), np.arange(height)), axis=-1) + 0.5
    inner = (np.abs(geometry.to_model(pixels) - input_size / 2) < input_size / 2 - edge).all(-1)
    assert inner.sum() > 0.4 * (~np.isnan(found)).sum()
    np.testing.assert_allclose(found[inner], expected[inner], atol=1e-3)
