"""Which views are judged, what is left aside, and studies judged by all of their images."""

from __future__ import annotations

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import roc_auc_score

from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.evaluate import EvaluationOptions
from medclip_debias.evaluation.label_table import class_list, of_studies, table_labels
from medclip_debias.evaluation.offsets import offset_rows
from medclip_debias.evaluation.protocol import Draw, Request
from medclip_debias.evaluation.protocols.retrieval import (
    StudyRetrieval,
)
from medclip_debias.evaluation.validation import validator_of
from medclip_debias.models.load import load_model

CLASSES = ["Edema", "Pneumonia", "Pneumothorax"]


@pytest.fixture(scope="module")
def mixed(write_prepared, tmp_path_factory) -> PreparedSet:
    """The hand-made set of 36 images as 18 studies of two: s00 is i00 (PA) and i01 (LL) ...

    Study s04 has two laterals; the views of s06 are its archive's own word and blank.
    """

    def change(tables):
        images, studies = tables["images"], tables["studies"]
        first = {f"s{2 * n + 1:02d}": f"s{2 * n:02d}" for n in range(18)}
        for table in (images, tables["sentences"]):
            table["study_id"] = table["study_id"].replace(first)
        images["view"] = ["PA", "LL"] * 18
        images.loc[images["study_id"] == "s04", "view"] = "LL"
        images.loc[images["study_id"] == "s06", "view"] = ["Thorax", ""]
        kept = studies[~studies["study_id"].isin(first)]
        tables["studies"] = kept.assign(Edema=[float(n // 3 % 2) for n in range(18)])

    folder = write_prepared(tmp_path_factory.mktemp("mixed") / "set", change=change)
    meta = json.loads((folder / "meta.json").read_text())
    meta["selection"] = {"views": ["frontal", "lateral", "thorax"]}
    (folder / "meta.json").write_text(json.dumps(meta))
    return PreparedSet.open(folder)


@pytest.fixture(scope="module")
def scores(mixed, small_model):
    """``[36]`` of "Pulmonary edema" less "No pulmonary edema", image by image."""
    model = load_model(small_model, torch.device("cpu"))
    with torch.inference_mode():
        vectors = model.encode_sentences(["Pulmonary edema", "No pulmonary edema"])
        pixels = torch.from_numpy(np.array(mixed.pixels))
        found = model.score(model.encode_images(pixels), vectors)
    return np.asarray(found, dtype=np.float64) @ [1.0, -1.0]


@pytest.fixture
def run(measured, mixed):
    """A function: the results of the mixed set under some options."""
    return lambda **options: measured(
        "zero_shot", "grounding", prepared=mixed.folder, options=EvaluationOptions(**options)
    )


def edema(mixed, studies):
    return (mixed.studies.set_index("study_id")["Edema"].loc[studies] == 1).to_numpy()


def test_frontal_images_are_judged_and_the_others_counted(mixed, run, scores):
    found, images = run(), mixed.images
    lateral, test = images["view"] == "LL", images["split"] == "test"
    rows = np.flatnonzero(test & ~lateral)
    zero = found.details("zero_shot")
    assert zero["images"] == len(rows)
    assert zero["source"]["images_of_other_views"] == (test & lateral).sum() > 0
    expected = roc_auc_score(edema(mixed, images["study_id"].iloc[rows]), scores[rows])
    assert found.value("zero_shot", "auc", "Edema") == pytest.approx(expected)
    held = images["split"].isin(["test", "held_out"])
    aside = (held & lateral).sum()
    assert found.details("grounding")["other_views"] == 2 * aside  # two phrases an image
    assert found["notes"][0].startswith(f"{aside} of {held.sum()} images are not frontal")


def test_a_study_is_judged_by_the_mean_of_all_its_images_when_asked_for(
    mixed, run, scores, tmp_path
):
    found = run(views="all", several_views="mean")
    rows = np.flatnonzero(mixed.images["split"] == "test")
    means = pd.Series(scores[rows]).groupby(mixed.images["study_id"].iloc[rows].to_numpy()).mean()
    truth = edema(mixed, means.index)
    zero, auc = found.details("zero_shot"), found.value("zero_shot", "auc", "Edema")
    assert (zero["images"], zero["studies"]) == (len(rows), len(means))
    assert auc == pytest.approx(roc_auc_score(truth, means))
    assert zero["classes"]["Edema"]["positive"] == truth.sum()
    items = pd.read_parquet(tmp_path / "run" / "items" / "zero_shot.parquet")
    np.testing.assert_allclose(np.sort(items["score.Edema"]), np.sort(means), atol=1e-6)
    assert zero["source"]["images_of_other_views"] == 0
    assert found.details("grounding")["other_views"] == 0
    assert found["notes"] == []


def test_a_label_map_is_told_of_where_studies_are_judged(mixed, measured, tmp_path):
    rules = "classes: {Edema: Edema}\nleft_out: {nobody looked: [Pneumonia]}\n"
    (tmp_path / "mine.yaml").write_text(rules)
    options = EvaluationOptions(several_views="mean")
    given = {"prepared": mixed.folder, "label_map": tmp_path / "mine.yaml", "options": options}
    zero = measured("zero_shot", **given).details("zero_shot")
    assert zero["label_map"]["name"] == "mine"
    assert zero["refused"]["Pneumonia"]["reason"] == "nobody looked"


def test_images_of_a_study_with_other_labels_have_no_study_label(mixed, tmp_path):
    text = "image_id,Edema\n" + "".join(f"i{n:02d},{n % 2}\n" for n in range(36))
    (tmp_path / "a.csv").write_text(text)
    labels = table_labels(tmp_path / "a.csv", mixed, "test", CLASSES, views="all")
    with pytest.raises(UserError, match=r"a\.csv: images of one study have different labels"):
        of_studies(labels, mixed)
    frontal = table_labels(tmp_path / "a.csv", mixed, "test", CLASSES)
    assert frontal.source["images_of_other_views"] == len(labels.rows) - len(frontal.rows)
    assert set(frontal.rows) == {row for row in labels.rows if mixed.frontal[row]}
    listed = "image_id,class\n" + "".join(f"i{n:02d},Edema\n" for n in range(36))
    (tmp_path / "b.csv").write_text(listed)
    found = class_list(tmp_path / "b.csv", mixed, CLASSES)
    outside = (mixed.images["split"] != "train").to_numpy()
    assert found.rows == np.flatnonzero(outside & mixed.frontal).tolist()
    assert found.source["images_of_other_views"] == (outside & ~mixed.frontal).sum()
    train = np.flatnonzero(mixed.images["split"] == "train")
    assert offset_rows(mixed, "train", ()) == train[mixed.frontal[train]].tolist()
    assert offset_rows(mixed, "train", (), "all") == train.tolist()


@pytest.mark.parametrize(("views", "several"), [("frontal", "each"), ("all", "mean")])
def test_study_retrieval_ranks_studies_by_their_judged_images(mixed, views, several):
    table = np.random.default_rng(0).normal(size=(36, 8)).astype(np.float32)
    options = EvaluationOptions(views=views, several_views=several)
    protocol = StudyRetrieval(Request(mixed, "test", None, None, options))
    count = len(protocol.texts)
    scored = SimpleNamespace(score=lambda rows, _: torch.from_numpy(table[rows, :count]))
    protocol.begin(scored, torch.zeros(count, 1))
    rows = sorted(protocol.rows)
    for part in (rows[3:], rows[:3]):
        protocol.see(part, part)
    found = protocol.measure(Draw(0, 0))
    expected = []
    for study in protocol.studies:
        rows = np.flatnonzero((mixed.images["study_id"] == study).to_numpy())
        rows = rows if views == "all" else rows[mixed.frontal[rows]]
        expected.append(table[rows if several == "mean" else rows[:1]].mean(axis=0))
    np.testing.assert_allclose(protocol._scores, np.stack(expected)[:, :count], rtol=1e-6)
    assert found.details["images"] == len(protocol.rows)
    assert found.details["studies_of_other_views"] == 0
    # Study s04, of training, has laterals alone.
    training = StudyRetrieval(Request(mixed, "train", None, None, options))
    assert ("s04" in training.studies) == (views == "all")


def test_validation_in_training_looks_at_frontal_images(mixed, small_model, tmp_path, monkeypatch):
    folder = tmp_path / "set"
    shutil.copytree(mixed.folder, folder)
    for name in ("images", "studies"):
        path = folder / f"{name}.parquet"
        pd.read_parquet(path).replace({"split": {"test": "validate"}}).to_parquet(path, index=False)
    model = load_model(small_model, torch.device("cpu"))
    seen, encode = [], model.encode_images
    monkeypatch.setattr(model, "encode_images", lambda x: seen.extend(x.numpy()) or encode(x))
    validator_of(folder, 100)(model)
    data = PreparedSet.open(folder)
    aside = data.pixels[~data.frontal]
    assert len(seen) > 10
    assert not any((aside == image).all(axis=(1, 2)).any() for image in seen)
