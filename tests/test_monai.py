"""In pipelines of MONAI: reading, the way back to the original's pixels, and the bundle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import medclip_debias as md
from medclip_debias.cli import run
from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.images import prepare_image, read_radiograph, to_square
from medclip_debias.grounding.heatmaps import upsample_to_original
from tests.grounding.conftest import *  # noqa: F403  (its models)

SIDES = 96, 64


@pytest.fixture(scope="module")
def small(make_model):
    return make_model(*SIDES, (1.0, 99.0))


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "radiograph.png"
    pixels = np.random.default_rng(0).integers(0, 255, (70, 110), np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def test_without_a_model_it_is_the_radiograph(file):
    from medclip_debias.monai import LoadRadiographd

    image = LoadRadiographd("image")({"image": file})["image"]
    np.testing.assert_array_equal(image[0].numpy(), read_radiograph(file).display())
    assert image.meta["filename_or_obj"] == str(file)


def test_with_a_model_it_is_what_the_network_sees_and_where(file, small):
    from medclip_debias.monai import LoadRadiographd

    image = LoadRadiographd("image", small)({"image": file})["image"]
    square = prepare_image(read_radiograph(file), small.preprocessing.prepare)
    seen = small.normalise(image.as_tensor())
    assert torch.equal(seen, small.normalise(torch.from_numpy(square)[None]))
    affine = image.affine.numpy()
    index = np.random.default_rng(1).uniform(0, SIDES[1], (20, 2))  # rows, columns
    found = index @ affine[:2, :2].T + affine[:2, 3]
    geometry = SquareGeometry(70, 110, *SIDES)
    np.testing.assert_allclose(geometry.to_original(index[:, ::-1] + 0.5)[:, ::-1] - 0.5, found)


@pytest.mark.parametrize("nearest", [True, False])
def test_invertd_leads_maps_back_as_heatmaps_go(file, small, nearest):
    from monai.data import DataLoader, Dataset, MetaTensor, decollate_batch
    from monai.transforms import Compose, Invertd

    from medclip_debias.monai import LoadRadiographd

    pipeline = Compose([LoadRadiographd("image", small)])
    back = Invertd("maps", pipeline, orig_keys="image", nearest_interp=nearest)
    loader = DataLoader(Dataset([{"image": file}, {"image": file}], pipeline), batch_size=2)
    (batch,) = loader
    maps = torch.rand(2, 3, *small.grid.shape)
    batch["maps"] = maps
    geometry = SquareGeometry(70, 110, *SIDES)
    for number, item in enumerate(decollate_batch(batch)):
        found = back(item | {"maps": MetaTensor(item["maps"])})["maps"]
        assert found.shape == (3, 70, 110)
        for channel in range(3):
            expected = upsample_to_original(maps[number, channel].numpy(), geometry, small.grid)
            np.testing.assert_array_equal(found[channel].numpy(), expected)


def test_a_map_at_the_input_goes_where_monai_resamples_it(file, small):
    """MONAI's own resampling by the two affines, away from the border of what was seen."""
    from monai.data import MetaTensor
    from monai.transforms import Compose, Invertd, ResampleToMatch

    from medclip_debias.monai import LoadRadiographd

    pipeline = Compose([LoadRadiographd("image", small)])
    item = pipeline({"image": file})
    heat = torch.rand(1, SIDES[1], SIDES[1])
    back = Invertd("heat", pipeline, orig_keys="image")
    found = back(item | {"heat": MetaTensor(heat)})["heat"]
    placed = MetaTensor(heat, affine=item["image"].affine)
    original = LoadRadiographd("image")({"image": file})["image"]
    expected = ResampleToMatch(mode="bilinear", padding_mode="border")(placed, original)
    inside = ~torch.isnan(found)
    assert 0.3 < inside.float().mean() < 1
    np.testing.assert_allclose(found[inside], expected[inside], atol=1e-4)


def test_maps_of_another_shape_are_refused(file, small):
    from monai.data import MetaTensor
    from monai.transforms import Compose, Invertd

    from medclip_debias.monai import LoadRadiographd

    pipeline = Compose([LoadRadiographd("image", small)])
    item = pipeline({"image": file}) | {"maps": MetaTensor(torch.rand(1, 5, 7))}
    with pytest.raises(RuntimeError) as caught:  # MONAI's, which names the transform
        Invertd("maps", pipeline, orig_keys="image")(item)
    assert "expected maps of" in str(caught.value.__cause__)


def through_monai(array, size, input_size):
    """Padded, resized and cut by MONAI's transforms, which keep track of the place."""
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


def test_a_bundle_gives_the_table_of_zero_shot(file, small, tmp_path, capsys):
    small.save(tmp_path / "model")
    bundle = tmp_path / "bundle"
    words = ["export", str(tmp_path / "model"), str(bundle), "--format", "monai-bundle"]
    assert run(words) == 0
    capsys.readouterr()
    assert {path.name for path in (bundle / "configs").iterdir()} == {
        "metadata.json",
        "inference.json",
    }
    # What `python -m monai.bundle run` calls; that reads its words with the package `fire`.
    from monai.bundle import run as run_bundle

    config = {"bundle_root": str(bundle), "images": [str(file)]}
    config["config_file"] = str(bundle / "configs" / "inference.json")
    run_bundle(**config)
    found = pd.read_csv(bundle / "output" / "zero_shot.csv", index_col="image")
    expected = md.load(tmp_path / "model", "cpu").zero_shot(file)
    assert list(found.columns) == list(expected.columns)
    assert [Path(name) for name in found.index] == [file]
    np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), rtol=1e-6)
