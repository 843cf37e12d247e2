"""The job on Open-i: which classes are judged, and the supervised references."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import openi
import supervised as reference
from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import prepare
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.claims.table import claim_set
from medclip_debias.errors import UserError
from medclip_debias.training.resolve import load_run

WORDS = ["The heart is enlarged.", "Possible cardiomegaly.", "No acute disease."]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """160 invented reports; the image of each that is labelled cardiomegaly has a bright centre."""
    tree = tmp_path_factory.mktemp("openi")
    rows, views = ["uid,MeSH,findings,impression"], ["uid,filename,projection"]
    for uid in range(160):
        sick = uid % 2
        rows.append(f"{uid},{'Cardiomegaly' if sick else 'normal'},{WORDS[uid % 3]},")
        name = f"{uid}_IM-0001-1001.dcm.png"
        pixels = np.random.default_rng(uid).integers(0, 100, (72, 72)).astype(np.uint8)
        pixels[20:52, 20:52] += 120 * sick
        Image.fromarray(pixels).save(tree / name)
        views.append(f"{uid},{name},Frontal")
    (tree / "indiana_reports.csv").write_text("\n".join(rows) + "\n")
    (tree / "indiana_projections.csv").write_text("\n".join(views) + "\n")
    made = prepare(tree, tree / "set", PrepareSettings(size=72), workers=1)
    claim_set(made.folder)
    return PreparedSet.open(made.folder)


def learned(data, out, **options):
    words = [f"prepared={data.folder}", "train.batch_size=16", "model.image.arch=resnet_tiny"]
    return reference.supervised(load_run("openi/base", words), out, **options)


def test_classes_with_too_few_images_of_either_kind_are_left_out_and_said(data, capsys):
    assert openi.judged_classes(data.folder, least=1) == ["Cardiomegaly", "No Finding"]
    assert "Edema (0 present" in capsys.readouterr().out
    with pytest.raises(UserError, match="no class has 50 test images with and 50 without"):
        openi.judged_classes(data.folder, least=50)


def test_the_supervised_reference_learns_what_the_images_show(data, tmp_path):
    torch.set_num_threads(1)
    found = learned(data, tmp_path, steps=30, every=10, bootstrap=50)
    assert found == json.loads((tmp_path / "supervised.json").read_text()) | {
        "classes": found["classes"]
    }
    assert set(found["classes"]) == {"Cardiomegaly", "No Finding"}
    assert found["classes"]["Cardiomegaly"]["auc"] > 0.95
    assert found["classes"]["Cardiomegaly"]["interval"][1] <= 1
    assert "Edema" in found["refused"]


def test_a_classifier_of_claims_learns_what_the_reports_say_and_is_judged_by_the_labels(
    data, tmp_path
):
    names, labels = reference._labels(data)
    claimed = reference.claimed(data, [*names, "Unheard Of"]).loc[data.images["study_id"]]
    order = data.images["study_id"].str.removeprefix("CXR").astype(int).to_numpy()
    expected = np.choose(order % 3, [1.0, np.nan, 0.0])
    np.testing.assert_array_equal(claimed["Cardiomegaly"], expected)
    np.testing.assert_array_equal(claimed["No Finding"], 1 - expected)
    assert claimed["Unheard Of"].isna().all()
    assert (labels[:, names.index("Cardiomegaly")] == order % 2).all()
    assert learned(data, tmp_path, steps=2, bootstrap=10, targets="claims")["targets"] == "claims"
