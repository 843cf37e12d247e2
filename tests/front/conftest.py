"""A tiny model in a folder, and one radiograph in several kinds of files."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from medclip_debias.data.prompts import default_prompts
from medclip_debias.front.model import Model, load
from tests.helpers.small_models import WORDS, dual_encoder, write_bert

OTHERS = [".", "edema", "pulmonary", "heart", "size", "normal", "cardiomegaly", "pneumothorax"]


@pytest.fixture(scope="session")
def language_model(tmp_path_factory):
    place = tmp_path_factory.mktemp("language") / "lm"
    return write_bert(place, words=[*WORDS, *OTHERS])[0]


@pytest.fixture(scope="session")
def make_network(language_model):
    """A function that makes an untrained model of 48-pixel images, with what it was trained on."""

    def make(**data):
        network = dual_encoder(language_model, "resnet_small", 48, 40, (1, 99), dim=12)
        network.prompts = default_prompts()
        network.provenance = {"data": data} if data else {}
        return network

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
