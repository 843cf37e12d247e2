"""Vectors on disk: what is read is what the network gave, and damage is never measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias.bench.vectors import CachedVectors, StoredRows, StoredSentences
from medclip_debias.errors import UserError
from medclip_debias.evaluation.encoding import Network
from medclip_debias.models.finite import NotFiniteError
from tests.bench.models import make_peer, save_language_model

TEXTS = ["Pulmonary edema.", "No pleural effusion.", "The lungs are clear."]


@dataclass
class Images:
    """What of a prepared set the vectors need."""

    pixels: np.ndarray
    content_hash: str = "0123456789abcdef"

    def __len__(self):
        return len(self.pixels)


@pytest.fixture(scope="module")
def data():
    return Images(np.random.default_rng(0).integers(0, 255, (9, 32, 32), dtype=np.uint8))


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """A small model that scores by whole images, and has regions too."""
    language = save_language_model(tmp_path_factory.mktemp("peer") / "lm", TEXTS * 4)
    sizes = {"image_size": 32, "patch_size": 16, "width": 16, "layers": 1, "head_width": 8}
    content = {"kind": "open_clip", "text": {"kind": "bert", "pooling": "none"}}
    content |= {"image": {"kind": "open_clip", "config": sizes}}
    model = make_peer(language, content, 32, 32)
    model.content_hash = "fedcba9876543210"
    return model


def test_what_is_read_is_what_the_network_gave(peer, data, tmp_path):
    rows = [1, 4, 7, 8]
    assert CachedVectors(tmp_path, peer, data).encode(rows, TEXTS, regions=rows, batch_size=4) == 4
    again = CachedVectors(tmp_path, peer, data)  # as another process finds it
    with torch.inference_mode():
        direct, sentences = Network(peer, data).images(rows), peer.encode_sentences(TEXTS)
    for regions in (True, False):
        features = again.read(regions=regions).images(rows)
        assert torch.equal(features.whole, direct.whole)
        assert torch.equal(peer.score(features, sentences), peer.score(direct, sentences))
    assert torch.equal(again.read(regions=True).images(rows).regions, direct.regions)
    assert torch.equal(again.sentences(TEXTS[::-1]), sentences.flip(0))
    assert again.encode(rows, TEXTS, regions=rows) == 0


def test_regions_are_kept_of_the_images_that_need_them(peer, data, tmp_path):
    CachedVectors(tmp_path, peer, data).encode([0, 1, 2], TEXTS, regions=[1])
    found = CachedVectors(tmp_path, peer, data)
    assert len(found.images([0, 1, 2], regions=False)) == 3
    assert len(found.images([1], regions=True)) == 1
    with pytest.raises(UserError, match="2 of 3 images have no vectors"):
        found.images([0, 1, 2], regions=True)
    assert found.encode([0, 1, 2], TEXTS, regions=[0, 1, 2]) == 2
    assert len(found.images([0, 1, 2], regions=True)) == 3


def test_damage_is_encoded_again_where_there_is_a_network(peer, data, tmp_path):
    first = CachedVectors(tmp_path, peer, data)
    first.encode([3, 5], TEXTS, regions=[3, 5])
    before = first.images([3, 5], regions=True)
    path = first.folder / "regions.f32"
    with path.open("rb+") as file:
        file.seek(path.stat().st_size // len(data) * 5)
        file.write(b"\x01\x02\x03\x04")
    with pytest.raises(UserError, match="row 5 is the first"):
        CachedVectors(tmp_path, peer, data).images([3, 5], regions=True)
    assert torch.equal(first.images([3, 5], regions=True).regions, before.regions)
    (first.folder / "whole.f32").write_bytes(b"short")
    assert CachedVectors(tmp_path, peer, data).encode([3, 5], TEXTS, regions=[3]) == 2


def test_vectors_that_are_no_numbers_are_not_kept(peer, data, tmp_path, monkeypatch):
    found = CachedVectors(tmp_path, peer, data)
    wrong = torch.full((1, 16), torch.nan)
    monkeypatch.setattr(type(peer), "encode_sentences", lambda *_: wrong)
    with pytest.raises(NotFiniteError):
        found.encode([0], TEXTS[:1])
    assert not (tmp_path / peer.content_hash / "sentences.npz").exists()


def test_sentences_are_found_by_digests_and_a_damaged_file_is_empty(peer, data, tmp_path):
    path = tmp_path / "sentences.npz"
    network = Network(peer, data)
    assert StoredSentences(path, 16).encode([*TEXTS, *TEXTS], network) == 3
    again = StoredSentences(path, 16)
    assert again.encode(["Pneumothorax.", *TEXTS], network) == 1
    assert b"edema" not in path.read_bytes()
    assert np.array_equal(StoredSentences(path, 16).read(TEXTS), again.read(TEXTS))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match="no vector of 1 of 1 sentences"):
        StoredSentences(path, 16).read(TEXTS[:1])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True), max_size=6))
def test_rows_hold_what_was_written_last(tmp_path_factory, batches):
    folder = tmp_path_factory.mktemp("rows")
    for name, size in (("a.f32", 7 * 3 * 4), ("a.sums", 7 * 4)):
        (folder / name).write_bytes(bytes(size))
    stored, model = StoredRows(folder / "a.f32", 7, 3), {}
    for number, rows in enumerate(batches):
        values = np.random.default_rng(number).normal(size=(len(rows), 3)).astype(np.float32)
        stored.write(rows, values)
        model |= dict(zip(rows, values, strict=True))
    assert stored.written(range(7)).tolist() == [row in model for row in range(7)]
    values, sound = stored.read(range(7))
    assert sound.tolist() == [row in model for row in range(7)]
    assert all(np.array_equal(values[row], vector) for row, vector in model.items())
