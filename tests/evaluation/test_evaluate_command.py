"""Files of one's own on the command line of ``evaluate``, and what it measures by them."""

from __future__ import annotations

import pandas as pd
import pytest
from sklearn.metrics import f1_score

from medclip_debias.cli import run
from medclip_debias.evaluation.evaluate import ON_TRAINING
from medclip_debias.evaluation.table import read_results
from medclip_debias.reporting.tables import results_table
from tests.evaluation.conftest import measuring_only


def listed(path, rows):
    path.write_text("\n".join(["Path,class", *rows]) + "\n")
    return path


def test_the_verb_takes_labels_phrases_and_class_images(
    small_prepared, small_model, tmp_path, capsys
):
    """Every file at once, on one command line, as a user gives them."""
    labels = tmp_path / "labels.csv.gz"
    table = pd.DataFrame({"Path": [f"CheXpert/valid/i{i:02d}.jpg" for i in range(36)]})
    table["Pleural Effusion"] = [float(i % 2) for i in range(36)]
    table["Edema"] = [(i // 2) % 2 for i in range(36)]
    table.to_csv(labels, index=False)
    boxes = tmp_path / "boxes.csv"
    boxes.write_text(
        "dicom_id,category_name,label_text,x,y,w,h,image_width,image_height,split\n"
        "i00,Edema,Mild edema,5,5,20,20,90,60,test\n"
        "i06,Edema,Left edema,5,5,30,20,180,120,test\n"
        "i07,Edema,Edema,5,5,30,20,60,90,val\n"
    )
    classes = listed(
        tmp_path / "5x200.csv",
        [*(f"x/i{i:02d}.jpg,{('Edema', 'Pleural Effusion')[i % 2]}" for i in range(9)), "no,Edema"],
    )
    words = ["evaluate", small_model, small_prepared.folder, "--bootstrap", 10, "--heatmaps", 0]
    out = tmp_path / "all"
    more = ["--labels", labels, "--phrases", boxes, "--class-images", classes, "--out", out]
    more += ["--classes", "Edema,Pleural Effusion"]
    with measuring_only("zero_shot", "grounding"):
        assert run([str(word) for word in [*words, *more]]) == 0
    assert "zero_shot.multiclass.accuracy" in capsys.readouterr().out
    found = read_results(out / "results.json")
    zero = found.details("zero_shot")
    assert zero["source"]["key"] == "path"
    assert zero["source"]["rows_not_in_set"] == 0
    items = pd.read_parquet(out / "items" / "zero_shot.parquet")
    assert zero["classes"]["Pleural Effusion"]["positive"] == 6
    assert len(items) == 12
    several = zero["multiclass"]
    # i00 to i03, i06 to i08 are of test or held out; i04 and i05 in training.
    assert several["images"] == 7
    reported = {"list": "5x200.csv", "rows": 10, "rows_not_in_set": 1, "images_in_training": 2}
    assert several["source"].items() >= reported.items()
    grounding = found.details("grounding")
    assert grounding["phrases"] == 2
    assert grounding["other_annotation_splits"] == 1
    assert grounding["source"]["annotation_splits"] == {"test": 2, "validate": 1}


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
    rows = [f"x/i{i:02d}.jpg,{('Edema', 'Pleural Effusion')[i % 2]}" for i in range(9)]
    classes = listed(tmp_path / "5x200.csv", rows)
    bare = write_prepared(tmp_path / "bare", labels=False)
    asked = {"class_images": classes, "classes": ["Edema", "Pleural Effusion"]}
    found = measured("zero_shot", prepared=bare, **asked)
    assert found.value("zero_shot", "multiclass_accuracy") is not None
    zero = found.details("zero_shot")
    assert zero["source"]["made_of"].startswith("the list of classes")
    positive = zero["classes"]["Edema"]["positive"]
    assert positive == zero["multiclass"]["classes"]["Edema"]["images"]
    assert zero["images"] == 7


def test_f1_is_at_the_threshold_of_the_validate_images(write_prepared, measured, tmp_path):
    folder = write_prepared(tmp_path / "set", splits=("test", "validate", "train"))
    rows = [f"s{i:02d},{i % 2},{(i // 2) % 2}" for i in range(36)]
    (tmp_path / "labels.csv").write_text("\n".join(["study_id,Edema,Pneumonia", *rows]))
    asked = {"labels": tmp_path / "labels.csv", "classes": ["Edema", "Pneumonia"]}
    found = measured("zero_shot", prepared=folder, **asked)
    zero = found.details("zero_shot")
    assert zero["source"]["labels"] == "labels.csv"
    threshold = zero["classes"]["Edema"]["threshold"]
    assert threshold["images"] == 12  # of validate
    items = pd.read_parquet(tmp_path / "run" / "items" / "zero_shot.parquet")
    expected = f1_score(items["label.Edema"] == 1, items["score.Edema"] >= threshold["value"])
    assert found.value("zero_shot", "f1", "Edema") == pytest.approx(expected)
    alone = (items[["label.Edema", "label.Pneumonia"]] == 1).sum(axis=1) == 1
    assert zero["multiclass"]["images"] == alone.sum() > 0


@pytest.mark.usefixtures("only_zero_shot")
def test_training_images_are_measured_only_when_it_is_wanted(
    small_prepared, small_model, tmp_path, capsys
):
    words = ["evaluate", small_model, small_prepared.folder, "--bootstrap", 0, "--heatmaps", 0]
    words += ["--out", tmp_path / "run", "--split", "train"]
    assert run([str(word) for word in words]) == 2
    assert "give --allow-train" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert run([str(word) for word in [*words, "--allow-train"]]) == 0
    assert "Measured on training images" in capsys.readouterr().out
    found = read_results(tmp_path / "run" / "results.json")
    assert found["notes"] == [ON_TRAINING]
    assert ON_TRAINING in results_table({"a": found}).caption
    assert run(["report", str(tmp_path / "run")]) == 0
    assert ON_TRAINING in (tmp_path / "run" / "report.html").read_text()
