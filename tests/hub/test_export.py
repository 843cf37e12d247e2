"""Exported networks give the model's numbers, for other numbers of images and sentences, too."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.hub import export as exporting
from medclip_debias.hub.export import LIMITS, export
from medclip_debias.models.dual_encoder import DualEncoder


def check(folder, form):
    said = json.loads((folder / "export.json").read_text())
    assert said["form"] == form
    assert "synthetic images" in said["warning"]
    assert set(said["parity"]) == set(LIMITS)
    assert all(one["difference"] <= one["limit"] for one in said["parity"].values())
    assert "/home" not in json.dumps(said)
    names = {path.name for path in folder.iterdir()}
    assert names >= {"samples.npz", "tokenizer.json", *(f["file"] for f in said["files"].values())}
    return said


def test_exported_networks_give_the_models_numbers(make_network, tmp_path, monkeypatch):
    """For other numbers of images and sentences than they were traced with."""
    trace, traced = exporting._program, {}

    def once(part, *words):  # tracing takes long, and is the same for both forms
        return traced.get(part.name) or traced.setdefault(part.name, trace(part, *words))

    monkeypatch.setattr(exporting, "_program", once)
    make_network(non_local="self_attention").save(tmp_path / "model")
    network = DualEncoder.load(tmp_path / "model")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 48, 48), dtype=np.uint8)
    texts = ["no effusion", "left pleural effusion .", "left", "no", ".", "pleural", "effusion"]
    ids, mask = network.tokenizer.pad(network.tokenizer.encode(texts, network.max_tokens))
    with torch.no_grad():
        features = network.encode_images(torch.from_numpy(pixels))
        sentences = network.encode_sentences(texts)
        scores = network.score(features, sentences).numpy()
        maps = network.region_scores(features, sentences).numpy()

    export(tmp_path / "model", tmp_path / "torch", "torch-export")
    check(tmp_path / "torch", "torch-export")
    tower = torch.export.load(tmp_path / "torch" / "image.pt2").module()
    found, _ = tower(torch.from_numpy(pixels))
    torch.testing.assert_close(found, features.regions, atol=1e-5, rtol=0)

    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    runtime = pytest.importorskip("onnxruntime")
    export(tmp_path / "model", tmp_path / "onnx", "onnx")
    said = check(tmp_path / "onnx", "onnx")
    sessions = {
        name: runtime.InferenceSession(tmp_path / "onnx" / about["file"])
        for name, about in said["files"].items()
    }
    regions, _ = sessions["image"].run(None, {"images": pixels})
    (words,) = sessions["text"].run(None, {"ids": ids.numpy(), "mask": mask.numpy()})
    found, places = sessions["score"].run(None, {"regions": regions, "sentences": words})
    assert np.abs(found - scores).max() <= LIMITS["scores"]
    assert np.abs(places.reshape(maps.shape) - maps).max() <= LIMITS["maps"]
    assert places.shape[2:] == (said["grid"]["rows"], said["grid"]["columns"])


def test_a_bundle_holds_the_same_model_without_the_paths_of_this_machine(model_folder, tmp_path):
    export(model_folder, tmp_path / "bundle", "monai-bundle")
    texts = [path.read_text() for path in tmp_path.rglob("*.json")]
    assert len(texts) > 3
    assert not any("someone" in text for text in texts)
    there, here = (DualEncoder.load(f) for f in (tmp_path / "bundle" / "models", model_folder))
    assert there.content_hash == here.content_hash


@pytest.mark.parametrize("name", ["regions", "maps"])
def test_a_file_that_gives_other_numbers_is_not_kept(model_folder, tmp_path, monkeypatch, name):
    """Each output in turn off by twice what is allowed, as a broken converter would give it."""

    def off(folder, suffix, part, given):
        with torch.no_grad():
            out = part(*(torch.from_numpy(given[key]) for key in part.inputs))
        several = (out,) if isinstance(out, torch.Tensor) else out
        found = dict(zip(part.outputs, (value.numpy() for value in several), strict=True))
        return {key: x + np.float32(2 * LIMITS[key] * (key == name)) for key, x in found.items()}

    form = (".pt2", lambda _, part, path: path.write_bytes(b""), off, ())
    monkeypatch.setitem(exporting.FORMS, "torch-export", form)
    monkeypatch.setattr(exporting, "_program", lambda *_: None)  # which nothing here reads
    with pytest.raises(UserError, match=rf"gives other results than in torch \(.*{name} by"):
        export(model_folder, tmp_path / "out", "torch-export")
    assert not (tmp_path / "out").exists()


def test_a_peer_and_a_missing_library_are_refused(model_folder, tmp_path, monkeypatch):
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "peer.yaml").write_text("")
    with pytest.raises(UserError, match="is a peer"):
        export(tmp_path / "peer", tmp_path / "out")
    monkeypatch.setattr("medclip_debias.errors.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"medclip-debias\[export\]"):
        export(model_folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
