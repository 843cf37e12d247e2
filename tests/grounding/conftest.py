"""A small untrained model: its scores mean nothing, but their places do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medclip_debias.config import (
    ImageEncoderSettings,
    ModelSettings,
    PrepareSettings,
    Preprocessing,
    TextEncoderSettings,
)
from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
from medclip_debias.models.dual_encoder import DualEncoder


@pytest.fixture(scope="session")
def make_model(tmp_path_factory):
    """A function that makes a model for images prepared at a size."""
    folder = tmp_path_factory.mktemp("lm")
    settings = LanguageModelSettings(
        vocabulary=60, hidden=16, layers=1, heads=2, steps=1, batch_size=8, max_tokens=16
    )
    train_masked_lm(["Left lung.", "Right lung."] * 8, folder / "lm", settings)

    def make(size, input_size, clip, seed=3):
        torch.manual_seed(seed)
        return DualEncoder.create(
            ModelSettings(
                image=ImageEncoderSettings(arch="resnet_tiny"),
                text=TextEncoderSettings(folder=folder / "lm", max_tokens=16),
                dim=16,
            ),
            Preprocessing(prepare=PrepareSettings(size=size, clip=clip), input_size=input_size),
        ).eval()

    return make


@pytest.fixture(scope="session")
def model(make_model):
    """A model of images at 96, cropped to 80; do not change it."""
    return make_model(96, 80, (0, 100))


@pytest.fixture
def radiograph():
    """A function that makes a picture of a shape, with a bright patch (top, left, side)."""

    def make(height, width, patch=None):
        rows, columns = np.mgrid[:height, :width]
        image = 60 + 40 * np.sin(rows / height * 3) + 30 * columns / width
        image[0, 0], image[-1, -1] = 0, 255  # a fixed range: the patch changes nothing else
        if patch:
            top, left, side = patch
            image[top : top + side, left : left + side] = 220
        return image.astype(np.float32)

    return make
