"""RSNA Pneumonia: several rows an image, three classes, and whose images they are."""

import json
import shutil

import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import Reading, prepare
from medclip_debias.data.sources.detect import detect
from medclip_debias.data.splits import seeded_split
from medclip_debias.errors import UserError
from tests.data.sources.counts import steps
from tests.data.sources.trees import write_table

HEADER = "patientId,x,y,width,height,Target"
A, B, C = (f"0000000{n}-1c29-4943-afc9-b6754be640eb" for n in range(3))
ROWS = (
    f"{A},264.0,152.0,213.0,379.0,1",
    f"{A},562.0,152.0,256.0,453.0,1",
    f"{B},,,,,0",
    f"{C},,,,,0",
)
CLASSES = (f"{A},Lung Opacity", f"{A},Lung Opacity", f"{B},No Lung Opacity / Not Normal")


def write(folder, rows=ROWS, classes=(*CLASSES, f"{C},Normal")):
    write_table(folder / "stage_2_train_labels.csv", HEADER, *rows)
    write_table(folder / "stage_2_detailed_class_info.csv", "patientId,class", *classes)
    (folder / "stage_2_train_images").mkdir(exist_ok=True)
    return folder


def test_the_three_classes_are_labels(tmp_path):
    labels = {s.study_id: s.labels for s in detect(write(tmp_path)).studies()}
    assert labels == {
        A: {"Pneumonia": 1.0, "Lung Opacity": 1.0, "No Finding": 0.0},
        B: {"Pneumonia": 0.0, "Lung Opacity": None, "No Finding": 0.0},
        C: {"Pneumonia": 0.0, "Lung Opacity": 0.0, "No Finding": 1.0},
    }
    (tmp_path / "stage_2_detailed_class_info.csv").unlink()
    assert {len(s.labels) for s in detect(tmp_path).studies()} == {1}


def test_a_table_of_classes_of_other_images_is_refused(tmp_path):
    write(tmp_path, classes=[f"{name.upper()},Normal" for name in (A, B, C)])
    with pytest.raises(UserError, match=r"class_info.csv: 0 of its 3 ids in column 'patientId'"):
        detect(tmp_path)


def test_images_of_one_person_of_chestxray14_share_a_split(tmp_path):
    write(tmp_path)
    mapping = [
        {"subset_img_id": A, "img_id": "00013659_019.png", "orig_labels": []},
        {"subset_img_id": C, "img_id": "00013659_002.png", "orig_labels": []},
        {"subset_img_id": "other", "img_id": "00000001_000.png"},
    ]
    (tmp_path / "pneumonia-challenge-dataset-mappings_2018.json").write_text(json.dumps(mapping))
    source = detect(tmp_path, split_seed=3)
    assert [i.patient_id for i in source.images()] == ["13659", B, "13659"]
    assert source.images()[0].split == source.images()[2].split == seeded_split("13659", 3)
    name = "image is in pneumonia-challenge-dataset-mappings_2018.json"
    assert steps(source)[name] == (2, 3)


def test_what_is_odd_in_the_tables_is_counted(tmp_path):
    rows = (
        *ROWS,
        f"{A},562.0,152.0,256.0,453.0,1",  # again
        f"{B},1,2,3,4,0",  # a box where there is none
        f"{C},,,,,1",  # the other target, and no box
        f"{C},1,2,3,4,x",
        ",1,2,3,4,1",
    )
    classes = (*CLASSES, f"{C},Normal", f"{C},Lung Opacity", "x,Normal", f"{B},Norml")
    source = detect(write(tmp_path, rows, classes))
    assert steps(source) == {
        "row of stage_2_train_labels.csv is not a repeat": (8, 9),
        "row of stage_2_train_labels.csv is filled in (patientId)": (7, 8),
        "label cell of stage_2_train_labels.csv has a value that the archive defines": (6, 7),
        "row has the labels of its image in the rows above (else present counts)": (6, 7),
        "row of stage_2_train_labels.csv has a box where its label is 1, and none where it is 0": (
            4,
            7,
        ),
        "row of stage_2_detailed_class_info.csv names an image and a class": (5, 7),
        "image has one class": (2, 3),
    }
    labels = {s.study_id: s.labels for s in source.studies()}
    assert labels[C] == {"Pneumonia": 1.0, "No Finding": None, "Lung Opacity": None}


def test_its_real_dicom_files_are_prepared_with_their_views(tmp_path, shared_data):
    write(tmp_path)
    files = sorted((shared_data / "dicom").glob("*.dcm"))
    for name, file in zip((A, B), files, strict=True):
        shutil.copy(file, tmp_path / "stage_2_train_images" / f"{name}.dcm")
    seed = next(n for n in range(999) if {seeded_split(i, n) for i in (A, B)} == {"test"})
    how = Reading(split_seed=seed)
    out = prepare(tmp_path, tmp_path / "set", PrepareSettings(size=64), reading=how, workers=1)
    assert out.images["view"].tolist() == ["PA", "PA"]
    assert out.images["width"].tolist() == [1024, 1024]
    assert out.phrases["boxes"].iloc[0] == [
        [264.0, 152.0, 213.0, 379.0],
        [562.0, 152.0, 256.0, 453.0],
    ]
    assert (out.folder / "missing.csv").read_text().count("\n") == 2  # C
