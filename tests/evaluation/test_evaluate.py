"""The whole evaluation of an untrained model, against one image and one sentence at a time."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.metrics import f1_score, roc_auc_score
from torchvision.ops import roi_align

from medclip_debias.cli import run
from medclip_debias.config import PrepareSettings, Preprocessing
from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.errors import UserError
from medclip_debias.evaluation.evaluate import ON_TRAINING, EvaluationOptions, evaluate
from medclip_debias.evaluation.metrics import MIDDLE_THRESHOLDS
from medclip_debias.evaluation.table import read_results
from medclip_debias.grounding.boxes import box_mask
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.reporting.report import write_report
from medclip_debias.reporting.tables import results_table
from tests.evaluation.conftest import measuring_only
from tests.helpers.pixel_metrics import cnr, miou, pointing_game

SIZE, INPUT = 48, 40  # of the fixtures' images and model


@pytest.fixture(scope="module")
def slow(small_prepared, small_model):
    """The same metrics the slow way: every image and sentence encoded on its own."""
    model = DualEncoder.load(small_model)
    images, phrases = small_prepared.images, small_prepared.phrases
    cut = (SIZE - INPUT) // 2
    regions = {}
    with torch.no_grad():
        for row, image_id in enumerate(images["image_id"]):
            pixels = small_prepared.pixels[row, cut : cut + INPUT, cut : cut + INPUT].copy()
            features = model.encode_images(torch.from_numpy(pixels)[None])
            regions[image_id] = features.regions[0]
        texts = set(phrases["text"]) | set(model.prompts["chex5"]["classes"])
        texts |= {"No pulmonary edema", "Pulmonary edema"}
        vectors = {text: model.encode_sentences([text])[0] for text in texts}
    return model, regions, vectors


def test_zero_shot_metrics_are_those_of_single_images(evaluated, slow, small_prepared):
    model, regions, vectors = slow
    test = small_prepared.images.query("split == 'test'")
    truth = small_prepared.studies.set_index("study_id")["Edema"][test["study_id"]]
    pair = torch.stack([vectors["Pulmonary edema"], vectors["No pulmonary edema"]])
    with torch.no_grad():
        both = [
            model.similarity(regions[name][None], pair)[0].tolist() for name in test["image_id"]
        ]
    score = [yes - no for yes, no in both]
    auc, accuracy = (evaluated[0].value("zero_shot", name, "Edema") for name in ("auc", "accuracy"))
    found = evaluated[0].details("zero_shot")
    assert found["images"] == len(score) == 12
    assert auc == pytest.approx(roc_auc_score(truth, score), abs=1e-9)
    decided = (np.array(score) > 0) == (np.array(truth) == 1)
    assert accuracy == pytest.approx(decided.mean())
    assert found["refused"]["Pneumothorax"]["negative"] == 12
    assert found["refused"]["Cardiomegaly"]["reason"] == "no such label column"


def test_grounding_and_retrieval_are_those_of_single_phrases(evaluated, slow, small_prepared):
    model, regions, vectors = slow
    images = small_prepared.images.set_index("image_id")
    contrasts, hits, overlaps, features, texts = [], [], [], [], []
    for image_id, text, boxes in zip(
        *(small_prepared.phrases[c] for c in ("image_id", "text", "boxes")), strict=True
    ):
        if images.loc[image_id, "split"] == "train":
            continue
        height, width = (int(images.loc[image_id, side]) for side in ("height", "width"))
        geometry = SquareGeometry(height, width, SIZE, INPUT)
        grid = (regions[image_id] @ vectors[text]).numpy().astype(float).reshape(model.grid.shape)
        heat = upsample_to_original(grid, geometry, model.grid)
        mask = box_mask(boxes, height, width)
        contrasts.append(cnr(heat, mask))
        hits.append(pointing_game(heat, mask))
        overlaps.append((miou(heat, mask), miou(heat, mask, MIDDLE_THRESHOLDS), mask.mean()))
        moved = geometry.box_to_model(np.array(boxes))
        corners = np.concatenate([moved[:, :2], moved[:, :2] + moved[:, 2:]], axis=1)
        field = regions[image_id].T.reshape(1, -1, *model.grid.shape)
        # In roi_align's units the first region's centre, half a pixel into the input, is at .5.
        rois = torch.from_numpy(corners.clip(0, INPUT) + 3.5).float()
        pooled = roi_align(field, [rois], 1, spatial_scale=1 / 8, aligned=True)
        feature = pooled.flatten(1).mean(0)
        features.append((feature / feature.norm()).numpy())
        texts.append(text)
    found = evaluated[0]
    assert found.details("grounding")["phrases"] == len(contrasts) == 48
    assert found.details("grounding")["other_splits"] == 24
    assert found.value("grounding", "cnr") == pytest.approx(np.mean(contrasts), rel=1e-4)
    assert found.value("grounding", "pointing_game") == pytest.approx(np.mean(hits), abs=0.011)
    values = [found.value("grounding", name) for name in ("miou", "miou_middle", "area")]
    assert values == pytest.approx(np.mean(overlaps, axis=0), abs=1e-3)
    without = found.value("grounding", "miou", None, "chance")  # a map of zeros
    assert without == pytest.approx(values[2] * 21 / 41)
    scores = np.array(features) @ np.array([vectors[text].numpy() for text in texts]).T
    ranks = [1 + (row > row[q]).sum() for q, row in enumerate(scores.T)]
    way = "strict, sentence to box"
    rank = found.value("retrieval", "median_rank", None, way)
    assert rank == pytest.approx(np.median(ranks), abs=1)
    recall = found.value("retrieval", "recall_at_10", None, way)
    assert recall == pytest.approx(np.mean(np.array(ranks) <= 10), abs=0.05)


def test_maps_that_explain_the_score_change_grounding_alone(write_prepared, measured, tmp_path):
    few = write_prepared(tmp_path / "few", splits=("test", *["train"] * 8))
    plain, found = (
        measured("grounding", "retrieval", prepared=few, options=options)
        for options in (EvaluationOptions(), EvaluationOptions(method="gradcam"))
    )
    assert found["options"]["method"] == "gradcam"
    assert found.value("grounding", "cnr") != plain.value("grounding", "cnr")
    assert found.value("retrieval", "median_rank") == plain.value("retrieval", "median_rank")


def test_pictures_are_spread_and_cases_are_the_best_the_median_and_the_worst(evaluated):
    folder = evaluated[1] / "heatmaps"
    index = json.loads((folder / "index.json").read_text())
    kinds = [item["category"] for item in index["items"]]
    assert all(abs(kinds.count(k) - 7 / 3) < 1 for k in ("Edema", "Pneumonia", "Pneumothorax"))
    assert len({item["image_id"] for item in index["items"]}) == len(index["items"]) == 7
    assert all((folder / one["file"]).is_file() for one in index["items"] + index["cases"])
    table = pd.read_parquet(evaluated[1] / "items" / "phrases.parquet")
    for metric in ("cnr_signed", "miou"):
        values = sorted(table.loc[table["groundable"], metric], reverse=True)
        expected = [values[0], values[(len(values) - 1) // 2], values[-1]]
        shown = {c["case"]: c[metric] for c in index["cases"] if c["metric"] == metric}
        assert [shown[name] for name in ("best", "median", "worst")] == pytest.approx(expected)


def test_a_set_prepared_otherwise_is_refused(small_prepared, small_model, tmp_path):
    model = DualEncoder.load(small_model)
    model.preprocessing = Preprocessing(
        prepare=PrepareSettings(size=64, equalize=True), input_size=INPUT
    )
    model.save(tmp_path / "model")
    with pytest.raises(UserError, match="size 48 instead of 64, equalize False instead of True"):
        evaluate(tmp_path / "model", small_prepared.folder, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_stopped_evaluation_leaves_no_earlier_results_or_pictures_beside_its_items(
    measured, tmp_path, monkeypatch
):
    measured("grounding", "study_retrieval", heatmaps=1)
    earlier = {"results.json", "heatmaps", "retrieval", "items"}
    assert earlier <= {path.name for path in (tmp_path / "run").iterdir()}

    def stopped(*given):
        raise KeyboardInterrupt

    monkeypatch.setattr("medclip_debias.evaluation.table.Results.write", stopped)
    with pytest.raises(KeyboardInterrupt):
        measured("zero_shot")
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["items"]


def test_what_the_set_lacks_is_skipped_with_a_reason(write_prepared, measured, tmp_path):
    unlabelled = write_prepared(tmp_path / "a", labels=False)
    found = measured("zero_shot", "grounding", prepared=unlabelled)
    assert "no labels for Cardiomegaly" in found["skipped"]["zero_shot"]
    assert found.protocols == {"grounding"}


def test_nothing_to_evaluate_is_one_sentence(write_prepared, small_model, tmp_path):
    folder = write_prepared(tmp_path / "train", splits=("train",))
    with pytest.raises(UserError, match="nothing to evaluate") as error:
        evaluate(small_model, folder, tmp_path / "run")
    assert "no image in the split 'test'" in str(error.value)
    assert "36 in 'train'" in str(error.value)


def test_a_label_policy_and_prompts_of_ones_own(measured, tmp_path):
    prompts = tmp_path / "own.yaml"
    prompts.write_text(
        "name: own\nclasses:\n  Pneumonia:\n    positive: [Small pneumothorax., Mild edema.]\n"
        "    negative: [No signs of pneumonia]\n"
    )
    options = EvaluationOptions.model_validate(
        {"labels": {"uncertain": "as_positive", "blank": "as_negative"}, "smoothing": 0.7}
    )
    found = measured("zero_shot", prompts=prompts, options=options)
    assert list(found.by_class("zero_shot", "auc")) == ["Pneumonia"]
    assert found.details("zero_shot")["classes"]["Pneumonia"]["left_out"] == 0
    assert found["prompts"]["name"] == "own"
    assert found["options"]["smoothing"] == 0.7


def test_items_can_be_paired_and_name_nobody(evaluated, small_prepared):
    found, out = evaluated
    tables = {path.stem: pd.read_parquet(path) for path in (out / "items").iterdir()}
    files = {"zero_shot", "phrases", "retrieval", "study_retrieval", "masks", "progression"}
    files |= {"sentence_boxes", "laterality", "triplets"}
    assert set(tables) == files
    images = small_prepared.images
    test = images[images["split"] == "test"]

    def key(name):
        """HMAC-SHA256 (RFC 2104) under the secret of the prepared set."""
        secret = bytes.fromhex((small_prepared.folder / "items.key").read_text())
        block = secret.ljust(64, b"\0")
        inner, outer = (bytes(byte ^ pad for byte in block) for pad in (0x36, 0x5C))
        text = f"{small_prepared.content_hash}:{name}".encode()
        inside = hashlib.sha256(inner + text).digest()
        return hashlib.sha256(outer + inside).hexdigest()[:16]

    zero = tables["zero_shot"]
    assert zero["item"].tolist() == [key(name) for name in test["image_id"]]
    assert zero["patient"].tolist() == [key(name) for name in test["patient_id"]]
    auc = roc_auc_score(zero["label.Edema"], zero["score.Edema"])
    assert auc == pytest.approx(found.value("zero_shot", "auc", "Edema"))
    raw = b"".join(path.read_bytes() for path in (out / "items").iterdir())
    for name in (*images["image_id"], *images["study_id"], "Pulmonary edema", "Mild edema"):
        assert name.encode() not in raw


def test_groups_of_phrases_add_up(evaluated):
    found = evaluated[0]
    for kind in ("category", "area", "frequency"):
        groups = found.groups("grounding", "cnr", kind).values()
        rows = [found.row("grounding", "cnr", None, group) for group in groups]
        assert sum(row["n"] for row in rows) == 48
        mean = sum(row["n"] * row["value"] for row in rows) / 48
        assert mean == pytest.approx(found.value("grounding", "cnr"))


def test_a_model_without_regions_is_not_asked_to_ground(measured, monkeypatch):
    one = property(lambda model: RegionGrid(1, 1, 40.0, 20.0))
    monkeypatch.setattr(DualEncoder, "grid", one)
    found = measured("zero_shot", "grounding", heatmaps=2)
    assert "no regions" in found["skipped"]["grounding"]
    assert found.details("zero_shot")["images"] == 12


def test_a_model_that_gives_nan_is_reported_and_writes_nothing(
    small_prepared, small_model, tmp_path, capsys
):
    model = DualEncoder.load(small_model)
    model.state_dict()["image_encoder.bn1.running_var"].fill_(torch.nan)
    model.save(tmp_path / "broken")
    out = tmp_path / "out"
    words = [str(tmp_path / "broken"), str(small_prepared.folder), "--out", str(out)]
    (tmp_path / "listed.txt").write_text("\n".join(f"Opacity number {n}." for n in range(40)))
    more = {"index": ["--sentences", str(tmp_path / "listed.txt")]}
    for verb in ("evaluate", "evaluate probe", "index"):
        assert run([*verb.split(), *words, *more.get(verb, [])]) == 2
        sentence = capsys.readouterr().err
        assert "values that the model gave are NaN or infinite" in sentence
        assert sentence.count("\n") == 1
        assert not out.exists()


# ------------------------------------------------------------------------------- files of one's own


def test_the_verb_takes_labels_phrases_and_class_images(small_prepared, small_model, tmp_path):
    """Every file at once, on one command line, as a user gives them."""
    labels = pd.DataFrame({"Path": [f"CheXpert/valid/i{i:02d}.jpg" for i in range(36)]})
    labels["Pleural Effusion"] = [float(i % 2) for i in range(36)]
    labels["Edema"] = [(i // 2) % 2 for i in range(36)]
    labels.to_csv(tmp_path / "labels.csv.gz", index=False)
    (tmp_path / "boxes.csv").write_text(
        "dicom_id,category_name,label_text,x,y,w,h,image_width,image_height,split\n"
        "i00,Edema,Mild edema,5,5,20,20,90,60,test\n"
        "i07,Edema,Edema,5,5,30,20,60,90,val\n"
    )
    (tmp_path / "classes.csv").write_text(CLASS_LIST)
    given = [f"--{name}={tmp_path / file}" for name, file in GIVEN.items()]
    words = ["evaluate", f"{small_model}", f"{small_prepared.folder}", f"--out={tmp_path / 'all'}"]
    words += ["--bootstrap=10", "--heatmaps=0", "--classes=Edema,Pleural Effusion", *given]
    with measuring_only("zero_shot", "grounding"):
        assert run(words) == 0
    found = read_results(tmp_path / "all" / "results.json")
    zero, grounding = found.details("zero_shot"), found.details("grounding")
    assert zero["source"]["key"] == "path"
    assert zero["classes"]["Pleural Effusion"]["positive"] == 6
    # i00 to i03, i06 to i08 are of test or held out; i04 and i05 in training.
    assert zero["multiclass"]["images"] == 7
    reported = {"list": "classes.csv", "rows": 10, "rows_not_in_set": 1, "images_in_training": 2}
    assert zero["multiclass"]["source"].items() >= reported.items()
    assert (grounding["phrases"], grounding["other_annotation_splits"]) == (1, 1)


CLASS_LIST = "Path,class\nno,Edema\n" + "".join(
    f"x/i{i:02d}.jpg,{('Edema', 'Pleural Effusion')[i % 2]}\n" for i in range(9)
)
GIVEN = {"labels": "labels.csv.gz", "phrases": "boxes.csv", "class-images": "classes.csv"}


@pytest.mark.parametrize("name", ["items", "heatmaps"])
def test_a_folder_of_the_users_own_is_not_replaced(name, small_prepared, small_model, tmp_path):
    note = tmp_path / name / "mine.txt"
    note.parent.mkdir()
    note.write_text("months of work")
    words = ["evaluate", small_model, small_prepared.folder, "--out", tmp_path, "--bootstrap", 0]
    assert run([str(word) for word in words]) == 2
    assert note.read_text() == "months of work"
    assert not (tmp_path / "results.json").exists()


def test_of_a_set_without_labels_a_list_of_classes_is_the_labels(
    write_prepared, measured, tmp_path
):
    (tmp_path / "classes.csv").write_text(CLASS_LIST)
    bare = write_prepared(tmp_path / "bare", labels=False)
    asked = {"class_images": tmp_path / "classes.csv", "classes": ["Edema", "Pleural Effusion"]}
    found = measured("zero_shot", prepared=bare, **asked)
    assert found.value("zero_shot", "multiclass_accuracy") is not None
    assert found.details("zero_shot")["images"] == 7


def test_f1_is_at_the_threshold_of_the_validate_images(write_prepared, measured, tmp_path):
    folder = write_prepared(tmp_path / "set", splits=("test", "validate", "train"))
    found = measured("zero_shot", prepared=folder, classes=["Edema"])
    threshold = found.details("zero_shot")["classes"]["Edema"]["threshold"]
    assert threshold["images"] == 12  # of validate
    items = pd.read_parquet(tmp_path / "run" / "items" / "zero_shot.parquet")
    expected = f1_score(items["label.Edema"] == 1, items["score.Edema"] >= threshold["value"])
    assert found.value("zero_shot", "f1", "Edema") == pytest.approx(expected)


def test_results_of_training_images_say_so_and_are_measured_only_when_it_is_wanted(
    measured, tmp_path
):
    with pytest.raises(UserError, match="give --allow-train"):
        measured("zero_shot", split="train")
    found = measured("zero_shot", split="train", allow_train=True)
    assert found["notes"] == [ON_TRAINING]
    assert ON_TRAINING in results_table({"a": found}).caption
    assert ON_TRAINING in write_report(tmp_path / "run").read_text()
