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


def test_torch_export_scores_as_the_model(make_network, tmp_path):
    make_network(aggregator="nl", non_local="self_attention").save(tmp_path / "model")
    export(tmp_path / "model", tmp_path / "out", "torch-export")
    check(tmp_path / "out", "torch-export")
    network = DualEncoder.load(tmp_path / "model")
    pixels = torch.randint(0, 256, (7, 48, 48), dtype=torch.uint8)
    regions, _ = torch.export.load(tmp_path / "out" / "image.pt2").module()(pixels)
    with torch.no_grad():
        wanted = network.encode_images(pixels).regions
    torch.testing.assert_close(regions, wanted, atol=1e-5, rtol=0)


def test_onnx_runs_from_what_its_folder_says(model_folder, tmp_path):
    for name in ("onnx", "onnxscript"):
        pytest.importorskip(name)
    runtime = pytest.importorskip("onnxruntime")
    export(model_folder, tmp_path / "out", "onnx")
    said = check(tmp_path / "out", "onnx")
    network = DualEncoder.load(model_folder)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 48, 48), dtype=np.uint8)
    texts = ["no effusion", "left pleural effusion .", "left", "no", ".", "pleural", "effusion"]
    ids, mask = network.tokenizer.pad(network.tokenizer.encode(texts, network.max_tokens))
    sessions = {
        name: runtime.InferenceSession(tmp_path / "out" / about["file"])
        for name, about in said["files"].items()
    }
    regions, _ = sessions["image"].run(None, {"images": pixels})
    (words,) = sessions["text"].run(None, {"ids": ids.numpy(), "mask": mask.numpy()})
    scores, maps = sessions["score"].run(None, {"regions": regions, "sentences": words})
    with torch.no_grad():
        features = network.encode_images(torch.from_numpy(pixels))
        sentences = network.encode_sentences(texts)
        wanted = network.score(features, sentences).numpy()
        cosines = network.region_scores(features, sentences).numpy()
    assert np.abs(scores - wanted).max() <= LIMITS["scores"]
    assert np.abs(maps.reshape(cosines.shape) - cosines).max() <= LIMITS["maps"]
    assert maps.shape[2:] == (said["grid"]["rows"], said["grid"]["columns"])


@pytest.mark.parametrize("name", LIMITS)
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


def test_what_cannot_be_exported_is_refused_in_a_sentence(model_folder, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="did you mean 'onnx'"):
        export(model_folder, tmp_path / "out", "onx")
    with pytest.raises(UserError, match="unit length"):
        export(model_folder, tmp_path / "out", "open_clip")
    (tmp_path / "peer").mkdir()
    (tmp_path / "peer" / "peer.yaml").write_text("")
    with pytest.raises(UserError, match="peer"):
        export(tmp_path / "peer", tmp_path / "out")
    monkeypatch.setattr("medclip_debias.errors.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"medclip-debias\[export\]"):
        export(model_folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
