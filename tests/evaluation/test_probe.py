"""The probe as a verb: on the phantom with its truth, and on sets that cannot be probed."""

from __future__ import annotations

import json

import pytest

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings, Preprocessing
from medclip_debias.models.dual_encoder import DualEncoder


def probing(model, prepared, out):
    return ["evaluate", "probe", str(model), str(prepared.folder), "--out", str(out)]


def test_probe_writes_figures_and_counts(small_model, small_prepared, tmp_path, capsys):
    words = probing(small_model, small_prepared, tmp_path / "p")
    words += ["--bootstrap", "50", "--set", "repeats=2", "--set", "neighbours=[3]"]
    assert run(words) == 0
    assert "mean.linear at 1:" in capsys.readouterr().out
    results = json.loads((tmp_path / "p/probe.json").read_text())
    assert set(results["classes"]) == {"Edema", "Pneumonia"}
    assert results["refused"]["Pneumothorax"]["positive_negative"]["train"][0] == 0
    for found in results["classes"].values():
        assert 0 <= found["linear at 1"]["auc"] <= 1
        assert found["linear at 0.1"]["repeats"] == 2
        low, high = found["3 neighbours"]["interval"] or (0, 1)  # pneumonia's rests on one patient
        assert low <= found["3 neighbours"]["auc"] <= high
    assert results["classes"]["Edema"]["3 neighbours"]["interval"]
    first = (tmp_path / "p/probe.json").read_bytes()
    assert run(words) == 0
    assert _without_time(first) == _without_time((tmp_path / "p/probe.json").read_bytes())


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--split", "train"], "The probe learns from the split 'train'"),
        (["--split", "nowhere"], "has no image in the split 'nowhere'; it has"),
        (["--truth", "phantom_tree"], "have no sentence of this split"),
        ([], "was prepared otherwise than the model expects (size 48 "),
    ],
)
def test_what_would_mislead_is_refused(
    small_model, small_prepared, phantom_tree, tmp_path, capsys, more, sentence
):
    more = [str(phantom_tree) if word == "phantom_tree" else word for word in more]
    model = DualEncoder.load(small_model)
    if not more:
        model.preprocessing = Preprocessing(prepare=PrepareSettings(size=64), input_size=40)
    model.save(tmp_path / "model")
    words = probing(tmp_path / "model", small_prepared, tmp_path / "out")
    assert run([*words, "--bootstrap", "0", *more]) == 2
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def _without_time(content):
    return {key: value for key, value in json.loads(content).items() if key != "seconds"}
