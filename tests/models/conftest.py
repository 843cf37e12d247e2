"""A small BERT folder, a small CXR-BERT folder, as published, and a model of this project."""

from __future__ import annotations

import pytest

from tests.helpers.small_models import dual_encoder, write_bert


@pytest.fixture
def bert_folder(tmp_path):
    return write_bert(tmp_path / "bert")[0]


@pytest.fixture
def cxr_bert_folder(tmp_path):
    return write_bert(tmp_path / "cxr-bert", projection=6)[0]


@pytest.fixture(scope="session")
def texts(tmp_path_factory):
    """A CXR-BERT's folder, not to be written to."""
    return write_bert(tmp_path_factory.mktemp("texts") / "cxr-bert", projection=6)[0]


@pytest.fixture(scope="session")
def saved_model(texts):
    """Its folder, not to be written to."""
    dual_encoder(texts).save(texts.parent / "model")
    return texts.parent / "model"
