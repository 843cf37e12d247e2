"""A small index, built by the library from the phantom."""

from __future__ import annotations

import pytest

from medclip_debias.grounding.search.build import build_index
from medclip_debias.grounding.search.learn import IndexSettings
from medclip_debias.models.similarity import Similarity

SETTINGS = IndexSettings(landmarks=60, queries=20, image_queries=4, batch_size=16)


def by_regions(settings, dim):
    """The score of a model of this project, without the model."""
    similarity = Similarity(settings, dim)
    return lambda features, sentences: similarity(features.regions, sentences)


@pytest.fixture(scope="session")
def index_settings():
    return SETTINGS


@pytest.fixture(scope="session")
def model_folder(make_model, tmp_path_factory):
    """The folder of a model whose preprocessing is that of the prepared phantom."""
    folder = tmp_path_factory.mktemp("search") / "model"
    make_model(72, 64, (0.5, 99.5)).save(folder)
    return folder


@pytest.fixture(scope="session")
def index_folder(model_folder, prepared_phantom, tmp_path_factory):
    """An index of the prepared phantom; do not change it."""
    out = tmp_path_factory.mktemp("indexes") / "index"
    build_index(model_folder, prepared_phantom, out, SETTINGS)
    return out
