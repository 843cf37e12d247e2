"""A tiny model in a folder, and one radiograph in several kinds of files."""

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
from medclip_debias.data.prompts import default_prompts
from medclip_debias.front.model import Model, load
from medclip_debias.language.masked_lm import LanguageModelSettings, train_masked_lm
from medclip_debias.models.dual_encoder import DualEncoder

WORDS = ["Left pleural effusion.", "No pleural effusion.", "Pulmonary edema", "Heart size normal"]


@pytest.fixture(scope="session")
def language_model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language") / "lm"
    settings = LanguageModelSettings(
        vocabulary=80, hidden=16, layers=1, heads=2, steps=1, batch_size=8, max_tokens=16
    )
    train_masked_lm(WORDS * 4, folder, settings)
    return folder


@pytest.fixture(scope="session")
def make_network(language_model):
    """A function that makes an untrained model of 48-pixel images, with what it was trained on."""

    def make(**data):
        torch.manual_seed(1)
        settings = ModelSettings(
            image=ImageEncoderSettings(arch="resnet_small"),
            text=TextEncoderSettings(folder=language_model, max_tokens=16),
            dim=12,
        )
        prepare = PrepareSettings(size=48, clip=(1, 99))
        network = DualEncoder.create(settings, Preprocessing(prepare=prepare, input_size=40))
        network.prompts = default_prompts()
        network.provenance = {"data": data} if data else {}
        return network.eval()

    return make


@pytest.fixture(scope="session")
def model_folder(make_network, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    make_network(kind="manifest", synthetic=False).save(folder)
    return folder


@pytest.fixture(scope="session")
def model(model_folder) -> Model:
    return load(model_folder, device="cpu")


def picture(seed=0, height=70, width=52):
    """uint8 ``[height, width]``: bright and dark parts, and noise."""
    rows, columns = np.mgrid[:height, :width]
    noise = np.random.default_rng(seed).normal(0, 12, (height, width))
    waves = 120 + 60 * np.sin(rows / (7 + seed)) + 40 * np.cos(columns / (5 + 2 * seed))
    return np.clip(np.rint(waves + noise), 0, 255).astype(np.uint8)


@pytest.fixture(scope="session")
def grey():
    return picture()


@pytest.fixture(scope="session")
def files(tmp_path_factory, write_dicom):
    """Images of several formats, depths, shapes and polarities, in one folder."""
    folder = tmp_path_factory.mktemp("files")
    deep = [picture(seed, 64, 80).astype(np.uint16) * 16 + 5 for seed in range(3)]
    write_dicom(folder / "a.dcm", deep[0], BitsStored=12, HighBit=11)
    window = {"WindowCenter": 1800, "WindowWidth": 1500}
    write_dicom(folder / "b.dcm", deep[1], BitsStored=12, HighBit=11, **window)
    negative = {"PhotometricInterpretation": "MONOCHROME1"}
    write_dicom(folder / "c.dcm", deep[2], BitsStored=12, HighBit=11, **negative)
    Image.fromarray(picture(3)).save(folder / "d.png")
    Image.fromarray(picture(4).astype(np.uint16) * 200).save(folder / "e.png")
    turned = Image.Exif()
    turned[274] = 6
    Image.fromarray(picture(5)).save(folder / "f.jpg", exif=turned)
    Image.fromarray(np.stack([picture(n) for n in (6, 7, 8)], axis=-1)).save(folder / "g.png")
    Image.fromarray(picture(9, 40, 90)).save(folder / "h.jpg")
    return sorted(folder.iterdir())
