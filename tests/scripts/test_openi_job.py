"""The job on Open-i: which classes are judged, its stages, and the supervised reference."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import openi
import supervised as reference
from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import prepare
from medclip_debias.data.text.claims.table import claim_set
from medclip_debias.errors import UserError
from medclip_debias.evaluation.metrics import auc
from medclip_debias.training.resolve import load_run

CONFIG = Path("openi/base")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """96 invented reports; the image of each with cardiomegaly has a bright centre."""
    tree = tmp_path_factory.mktemp("openi")
    rows, views = ["uid,MeSH,findings,impression"], ["uid,filename,projection"]
    for uid in range(96):
        sick = uid % 2
        index = "Cardiomegaly" if sick else "normal"
        rows.append(f"{uid},{index},{'Big heart' if sick else 'Normal heart'} seen.,")
        name = f"{uid}_IM-0001-1001.dcm.png"
        pixels = np.random.default_rng(uid).integers(0, 100, (72, 72)).astype(np.uint8)
        if sick:
            pixels[20:52, 20:52] += 120
        Image.fromarray(pixels).save(tree / name)
        views.append(f"{uid},{name},Frontal")
    (tree / "indiana_reports.csv").write_text("\n".join(rows) + "\n")
    (tree / "indiana_projections.csv").write_text("\n".join(views) + "\n")
    return prepare(tree, tree / "set", PrepareSettings(size=72), workers=1).folder


def settings(prepared, *overrides):
    words = [f"prepared={prepared}", "train.batch_size=16", "model.image.arch=resnet_tiny"]
    return load_run(CONFIG, [*words, *overrides])


def test_classes_with_too_few_images_of_either_kind_are_left_out_and_said(prepared, capsys):
    images = pd.read_parquet(prepared / "images.parquet")
    studies = pd.read_parquet(prepared / "studies.parquet")
    test = studies[studies["split"] == "test"]
    sick = int(test["Cardiomegaly"].sum())
    assert len(images) == 96
    assert 0 < sick < len(test)
    assert openi.judged_classes(prepared, least=1) == ["Cardiomegaly", "No Finding"]
    assert "Edema (0 present" in capsys.readouterr().out
    with pytest.raises(UserError, match="no class has 50 test images with and 50 without"):
        openi.judged_classes(prepared, least=50)


def test_the_stages_name_one_folder_and_the_config_s_size(tmp_path):
    found = openi.stages(Path("data"), tmp_path, CONFIG, 7, 5, "clip")
    names = [stage.name for stage in found]
    assert names == [
        *("prepare", "language_model", "claims", "score", "train"),
        *("evaluate", "probe", "supervised", "classifier_of_claims", "report"),
    ]
    how = ["--kind", "openi", "--size", "72"]
    assert found[0].words == ["prepare", "data", f"{tmp_path}/prepared", *how]
    assert found[4].words[:4] == ["train", f"{CONFIG}", "--loss", "clip"]
    assert {"train.steps=7", f"out={tmp_path}"} <= set(found[4].words)


def test_the_supervised_reference_learns_what_the_images_show(prepared, tmp_path):
    torch.set_num_threads(1)
    found = reference.supervised(settings(prepared), tmp_path, steps=30, every=10, bootstrap=50)
    assert found == json.loads((tmp_path / "supervised.json").read_text()) | {
        "classes": found["classes"]
    }
    assert set(found["classes"]) == {"Cardiomegaly", "No Finding"}
    assert found["classes"]["Cardiomegaly"]["auc"] > 0.95
    assert found["classes"]["Cardiomegaly"]["interval"][1] <= 1
    assert "Edema" in found["refused"]


def test_a_classifier_of_claims_learns_what_the_reports_say_and_is_judged_by_the_labels(tmp_path):
    tree = tmp_path / "tree"
    tree.mkdir()
    words = ["The heart is enlarged.", "Possible cardiomegaly.", "No acute disease."]
    rows, views = ["uid,MeSH,findings,impression"], ["uid,filename,projection"]
    for uid in range(60):
        rows.append(f"{uid},{'Cardiomegaly' if uid % 2 else 'normal'},{words[uid % 3]},")
        Image.fromarray(np.eye(72, dtype=np.uint8) * 200).save(tree / f"{uid}_IM-0001-1001.dcm.png")
        views.append(f"{uid},{uid}_IM-0001-1001.dcm.png,Frontal")
    (tree / "indiana_reports.csv").write_text("\n".join(rows) + "\n")
    (tree / "indiana_projections.csv").write_text("\n".join(views) + "\n")
    data = prepare(tree, tmp_path / "set", PrepareSettings(size=72), workers=1)
    claim_set(data.folder)
    names, labels = reference._labels(data)
    claimed = reference.claimed(data, [*names, "Unheard Of"]).loc[data.images["study_id"]]
    order = data.images["study_id"].str.removeprefix("CXR").astype(int).to_numpy()
    expected = np.choose(order % 3, [1.0, np.nan, 0.0])
    np.testing.assert_array_equal(claimed["Cardiomegaly"], expected)
    np.testing.assert_array_equal(claimed["No Finding"], 1 - expected)
    assert claimed["Unheard Of"].isna().all()
    assert (labels[:, names.index("Cardiomegaly")] == order % 2).all()
    found = reference.supervised(
        settings(data.folder), tmp_path / "out", steps=2, bootstrap=10, targets="claims"
    )
    assert found["targets"] == "claims"


def test_a_set_without_both_values_is_refused(prepared, tmp_path, monkeypatch):
    nothing = np.full((96, 1), np.nan)
    monkeypatch.setattr(reference, "_labels", lambda data: (["Edema"], nothing))
    with pytest.raises(UserError, match="no label has both values in train and test"):
        reference.supervised(settings(prepared), tmp_path, steps=1)


def test_the_mean_auc_is_that_of_the_known_labels_of_each_column():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(40, 3))
    truth = (rng.random((40, 3)) < 0.5).astype(float)
    truth[:5, 0] = np.nan
    truth[:, 2] = 0
    expected = [auc(truth[5:, 0] == 1, scores[5:, 0]), auc(truth[:, 1] == 1, scores[:, 1])]
    assert reference._mean_auc(scores, truth) == pytest.approx(np.mean(expected))
