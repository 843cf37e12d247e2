"""Vectors on disk: what is read is what the network gave, and damage is never measured."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias.bench.vectors import CachedVectors, StoredVectors
from medclip_debias.errors import UserError
from medclip_debias.evaluation.encoding import Network
from medclip_debias.models.finite import NotFiniteError
from tests.bench.models import bench_peer, save_language_model

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
    model = bench_peer(language, 32, 32, image={"kind": "open_clip", "config": sizes})
    model.content_hash = "fedcba9876543210"
    return model


def kept(cache, model, data, rows, *, regions, **more):
    """Features of images, as a card reads them."""
    return CachedVectors(cache, model, data, **more).of_card(rows, regions=regions).images(rows)


@pytest.fixture
def encoded(peer, monkeypatch):
    """Numbers of the images that the model encodes at a time."""
    seen, encode = [], type(peer).encode_images

    def counting(self, images):
        seen.append(len(images))
        return encode(self, images)

    monkeypatch.setattr(type(peer), "encode_images", counting)
    return seen


def test_what_is_read_is_what_the_network_gave(peer, data, tmp_path, encoded):
    rows = [1, 4, 7, 8]
    with torch.inference_mode():
        direct, sentences = Network(peer, data).images(rows), peer.encode_sentences(TEXTS)
    encoded.clear()
    for _ in range(2):  # once by the network, and once as another process finds it
        for regions in (True, False):
            features = kept(tmp_path, peer, data, rows, regions=regions, batch_size=4)
            assert torch.equal(features.whole, direct.whole)
            assert torch.equal(peer.score(features, sentences), peer.score(direct, sentences))
        features = kept(tmp_path, peer, data, rows, regions=True)
        assert torch.equal(features.regions, direct.regions)
        found = CachedVectors(tmp_path, peer, data).sentences(TEXTS[::-1])
        assert torch.equal(found, sentences.flip(0))
    assert encoded == [4]


def test_regions_are_kept_of_the_images_that_need_them(peer, data, tmp_path, encoded):
    kept(tmp_path, peer, data, [1], regions=True)
    kept(tmp_path, peer, data, [0, 1, 2], regions=False)
    assert len(kept(tmp_path, peer, data, [0, 1, 2], regions=True)) == 3
    assert encoded == [1, 2, 2]


def test_damaged_files_are_encoded_again(peer, data, tmp_path, encoded):
    before = kept(tmp_path, peer, data, [3, 5], regions=True)
    (path,) = tmp_path.rglob("regions/*")
    whole = path.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:600] + b"\x01" + whole[601:]):
        path.write_bytes(damaged)
        again = kept(tmp_path, peer, data, [3, 5], regions=True)
        assert torch.equal(again.regions, before.regions)
        for other in set(path.parent.iterdir()) - {path}:
            other.unlink()
    assert encoded == [2] * 3


def test_what_is_no_number_or_has_no_room_is_not_kept(peer, data, tmp_path, monkeypatch):
    wrong = torch.full((1, 16), torch.nan)
    monkeypatch.setattr(type(peer), "encode_sentences", lambda *_: wrong)
    with pytest.raises(NotFiniteError):
        CachedVectors(tmp_path, peer, data).sentences(TEXTS[:1])
    assert not [*tmp_path.rglob("*.npz")]
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100))
    with pytest.raises(UserError, match=r"the vectors of 2 images need .* make room"):
        kept(tmp_path, peer, data, [3, 5], regions=True)


def test_sentences_are_found_by_digests_and_not_stored(peer, data, tmp_path):
    CachedVectors(tmp_path, peer, data).sentences([*TEXTS, *TEXTS])
    CachedVectors(tmp_path, peer, data).sentences(["Pneumothorax.", *TEXTS])
    files = sorted(tmp_path.rglob("*.npz"))
    assert [len(np.load(path)["keys"]) for path in files] == [3, 1]
    assert not any(b"edema" in path.read_bytes() for path in files)


@settings(max_examples=30)
@given(st.lists(st.lists(st.integers(0, 6), min_size=1, max_size=4, unique=True), max_size=6))
def test_vectors_are_those_written_last(tmp_path_factory, batches):
    folder, model = tmp_path_factory.mktemp("rows"), {}
    stored = StoredVectors(folder)
    for number, rows in enumerate(batches):
        values = np.random.default_rng(number).normal(size=(len(rows), 3)).astype(np.float32)
        stored.add(rows, values)
        model |= dict(zip(rows, values, strict=True))
    for found in (stored, StoredVectors(folder)):
        assert found.lacking(range(7)) == [row for row in range(7) if row not in model]
        if model:
            assert np.array_equal(found.read([*model]), np.stack([*model.values()]))
