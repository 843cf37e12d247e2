"""Grounding an image file: maps and pictures lie where the image says they should."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    PrepareSettings,
    Preprocessing,
    TextEncoderSettings,
)
from medclip_debias.data.images import prepare_image, read_image
from medclip_debias.errors import UserError
from medclip_debias.grounding.ground import ground, ground_image
from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
from medclip_debias.models.dual_encoder import DualEncoder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lm")
    settings = LanguageModelSettings(
        vocabulary=60, hidden=16, layers=1, heads=2, steps=1, batch_size=8, max_tokens=16
    )
    train_masked_lm(["Left lung.", "Right lung."] * 8, folder / "lm", settings)
    torch.manual_seed(3)
    return DualEncoder.create(
        ModelSettings(
            image=ImageEncoderSettings(arch="resnet_small"),
            text=TextEncoderSettings(folder=folder / "lm", max_tokens=16),
            dim=16,
        ),
        Preprocessing(prepare=PrepareSettings(size=96, clip=(0, 100)), input_size=80),
    ).eval()


def radiograph(height, width, patch=None):
    rows, columns = np.mgrid[:height, :width]
    image = 60 + 40 * np.sin(rows / height * 3) + 30 * columns / width
    image[0, 0], image[-1, -1] = 0, 255  # a fixed range, so that the patch changes nothing else
    if patch:
        top, left, side = patch
        image[top : top + side, left : left + side] = 220
    return image.astype(np.float32)


@pytest.mark.parametrize("shape", [(150, 240), (240, 150), (200, 200)])
@pytest.mark.parametrize("corner", [(0.2, 0.25), (0.2, 0.65), (0.6, 0.25), (0.6, 0.65)])
def test_a_change_in_the_image_changes_the_map_in_the_same_place(model, shape, corner):
    height, width = shape
    top, left, side = int(corner[0] * height), int(corner[1] * width), 30
    before = ground_image(model, radiograph(*shape), ["Left lung."])[0].heatmap
    after = ground_image(model, radiograph(*shape, (top, left, side)), ["Left lung."])[0].heatmap
    assert after.shape == shape
    change = np.nan_to_num(after - before).astype(np.float64) ** 2
    rows, columns = np.mgrid[:height, :width] + 0.5
    y, x = ((change * axis).sum() / change.sum() for axis in (rows, columns))
    # An untrained network answers most where its receptive field is hit.
    cell = model.grid.stride * max(shape) / 96
    assert abs(y - (top + side / 2)) < 1.5 * cell
    assert abs(x - (left + side / 2)) < 1.5 * cell


def test_files_and_scores_of_each_sentence(model, tmp_path):
    path = tmp_path / "image.png"
    Image.fromarray(radiograph(120, 180).astype(np.uint8)).save(path)
    texts = ["Left lung.", "  Right lung: effusion?  "]
    rows = ground(model, path, texts, tmp_path / "out")
    names = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert names == [
        "01_left-lung.npy",
        "01_left-lung.png",
        "02_right-lung-effusion.npy",
        "02_right-lung-effusion.png",
    ]
    pixels = torch.from_numpy(prepare_image(read_image(path), model.preprocessing.prepare))[None]
    for row, text in zip(rows, texts, strict=True):
        with torch.no_grad():  # one sentence at a time, the image encoded anew
            regions = model.encode_images(pixels)
            vector = model.encode_sentences([text.strip()])
            score = model.similarity(regions, vector).item()
            cosines = (regions[0] @ vector[0]).numpy()
        heatmap = np.load(row["map"], allow_pickle=False)
        assert heatmap.shape == (120, 180)
        assert heatmap.dtype == np.float32
        assert row["score"] == pytest.approx(score, abs=1e-5)
        assert row["highest"] == pytest.approx(np.nanmax(heatmap))
        assert cosines.min() - 1e-5 <= np.nanmin(heatmap) <= np.nanmax(heatmap)
        assert np.nanmax(heatmap) <= cosines.max() + 1e-5
        x, y = row["peak"]
        assert heatmap[int(y), int(x)] == np.nanmax(heatmap)
        # 96 / 180 prepared pixels to one: the crop of 8 on each side hides 15 columns.
        assert np.isnan(heatmap[:, :15]).all()
        assert not np.isnan(heatmap[:, 16:-16]).any()
        with Image.open(row["picture"]) as picture:
            assert picture.format == "PNG"


def test_bad_sentences_and_images_are_refused(model, tmp_path):
    path = tmp_path / "image.png"
    Image.fromarray(radiograph(40, 40).astype(np.uint8)).save(path)
    with pytest.raises(UserError, match="Sentence 2 is empty"):
        ground(model, path, ["Left lung.", " "], tmp_path / "out")
    with pytest.raises(UserError, match="No sentence was given"):
        ground(model, path, [], tmp_path / "out")
    with pytest.raises(UserError, match=r"absent\.png"):
        ground(model, tmp_path / "absent.png", ["Left lung."], tmp_path / "out")
    assert not (tmp_path / "out").exists()
