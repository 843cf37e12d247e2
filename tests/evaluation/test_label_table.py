"""Label tables and image lists, and one sentence for each way they can be wrong."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from medclip_debias.errors import ReportedWarning, UserError
from medclip_debias.evaluation.label_table import (
    class_list,
    labels_of,
    table_labels,
)
from medclip_debias.evaluation.protocol import Skipped

CLASSES = ["Pleural Effusion", "Edema", "My Finding"]


def write(path, text):
    path.write_text(text)
    return path


def test_a_table_is_joined_by_study_or_by_image(small_prepared, tmp_path):
    images = small_prepared.images
    text = "study_id,pleural_effusion,My Finding\ns00,1,0\ns06,,-1\ns02,1,1\nelsewhere,0,0\n"
    found = table_labels(write(tmp_path / "a.csv", text), small_prepared, "test", CLASSES)
    assert images["image_id"].iloc[found.rows].tolist() == ["i00", "i06"]
    np.testing.assert_equal(found.values["Pleural Effusion"], [1, np.nan])
    np.testing.assert_equal(found.values["My Finding"], [0, -1])
    assert "Edema" not in found.values
    assert found.source["key"] == "study_id"
    assert found.source["rows_not_in_set"] == 1
    assert found.source["images_not_listed"] == 10
    table = pd.DataFrame({"image_id": ["i06", "i00"], "Edema": [0.0, 1.0]})
    table.to_parquet(tmp_path / "b.parquet")
    found = table_labels(tmp_path / "b.parquet", small_prepared, "test", CLASSES)
    assert found.values["Edema"].tolist() == [1, 0]  # in the set's order


def test_a_column_that_is_almost_a_class_is_named(small_prepared, tmp_path):
    path = write(tmp_path / "labels.csv", "study_id,Pneumonia,Oedema,Age\ns00,1,1,60\ns01,0,0,50\n")
    with pytest.warns(
        ReportedWarning, match=r"column 'Oedema' \(did you mean 'Edema'\?\)"
    ) as caught:
        table_labels(path, small_prepared, "test", ["Edema", "Pneumonia"])
    assert len(caught) == 1  # an age is no label, and nobody takes it for one


def test_what_the_set_or_table_lacks_is_skipped(small_prepared, tmp_path):
    path = write(tmp_path / "a.csv", "study_id,Edema\ns02,1\n")  # held out
    with pytest.raises(Skipped, match=r"a\.csv lists no image of the split 'test'"):
        table_labels(path, small_prepared, "test", CLASSES)
    with pytest.raises(Skipped, match="no image in the split 'validate'"):
        labels_of(small_prepared, "validate", CLASSES)
    with pytest.raises(Skipped, match="no labels for My Finding"):
        labels_of(small_prepared, "test", ["My Finding"])


@pytest.mark.parametrize(
    "text",
    [
        "Dicom_ID,Class\ni00,Edema\ni02,pleural effusion\ni04,Edema\n",
        "image_id,Edema,Pleural Effusion\ni00,1,0\ni02,0,1\ni04,1,0\n",
    ],
)
def test_image_lists_name_the_class_or_have_one_column_each(small_prepared, tmp_path, text):
    found = class_list(write(tmp_path / "a.csv", text), small_prepared, CLASSES)
    assert found.rows == [0, 2]
    assert found.values["Edema"].tolist() == [True, False]
    assert found.values["Pleural Effusion"].tolist() == [False, True]
    assert found.source["images_in_training"] == 1


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("image_id,Edema,Pleural Effusion\ni00,1,1\n", "row 2: must have one class that is 1"),
        ("image_id,class\ni00,Fracture\n", "row 2: the prompt set has no prompts for its class"),
        ("image_id,class\ni04,Edema\n", "lists no image of the set outside training"),
    ],
)
def test_image_lists_that_do_not_fit_are_one_sentence(small_prepared, tmp_path, text, sentence):
    with pytest.raises(UserError, match=sentence):
        class_list(write(tmp_path / "a.csv", text), small_prepared, CLASSES)


@pytest.mark.parametrize("cells", [("s00", "S06"), ("0.0", "6.0"), ("00", "06")])
def test_studies_are_found_however_a_table_writes_them(small_prepared, tmp_path, cells):
    path = write(tmp_path / "a.csv", f"study_id,Edema\n{cells[0]},1\n{cells[1]},0\n")
    found = table_labels(path, small_prepared, "test", CLASSES)
    assert small_prepared.images["study_id"].iloc[found.rows].tolist() == ["s00", "s06"]
    assert found.values["Edema"].tolist() == [1, 0]
    assert found.source["rows_not_in_set"] == 0


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("study_id,Edema\n50414267,1\n", "its ids look like '99999999', those of .* 'a99'"),
        ("study_id,Edema\nnan,1\ns00,1\n", "row 2: column 'study_id' is 'nan', a program's word"),
        ("study_id,Edema,edema\ns00,1,0\n", "columns 'Edema' and 'edema' both hold 'Edema'"),
    ],
)
def test_a_table_of_other_images_or_of_two_truths_is_refused_without_naming_one(
    small_prepared, tmp_path, text, sentence
):
    with pytest.raises(UserError, match=sentence) as caught:
        table_labels(write(tmp_path / "a.csv", text), small_prepared, "test", CLASSES)
    assert "50414267" not in str(caught.value)
