"""A small untrained model with an index of the phantom, and films to look at."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from medclip_debias.grounding.search.build import build_index
from medclip_debias.grounding.search.settings import IndexSettings
from medclip_debias.viewer.answers import Answers

# The same fixtures as for grounding: a model, and a function that makes models and films.
from tests.grounding.conftest import make_model, radiograph  # noqa: F401


@pytest.fixture(scope="session")
def model_folder(make_model, tmp_path_factory):  # noqa: F811
    """The folder of a model whose preprocessing is that of the prepared phantom."""
    folder = tmp_path_factory.mktemp("viewer") / "run" / "model"
    make_model(72, 64, (0.5, 99.5)).save(folder)
    return folder


@pytest.fixture(scope="session")
def index_folder(model_folder, prepared_phantom, tmp_path_factory):
    """An index of the prepared phantom."""
    out = tmp_path_factory.mktemp("indexes") / "index"
    settings = IndexSettings(landmarks=60, queries=10, image_queries=2, batch_size=16)
    build_index(model_folder, prepared_phantom, out, settings)
    return out


@pytest.fixture
def films(tmp_path, radiograph):  # noqa: F811
    """A folder with one good film, one that is none, and one in a folder of its own."""
    folder = tmp_path / "films"
    (folder / "more").mkdir(parents=True)
    for name, shape in (("good.png", (90, 70)), ("more/wide.png", (60, 110))):
        grey = radiograph(*shape, (20, 30, 15)).astype(np.uint8)
        Image.fromarray(grey).save(folder / name)
    (folder / "letter.jpg").write_text("Dear patient")
    return folder


@pytest.fixture
def answers(model_folder, films):
    """Answers of a model with a folder of films and no index."""
    return Answers.open(model_folder, images=films, device="cpu")


@pytest.fixture
def searching(model_folder, index_folder):
    """Answers of a model with an index."""
    return Answers.open(model_folder, index_folder, device="cpu")
