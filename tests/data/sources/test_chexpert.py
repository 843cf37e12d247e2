"""CheXpert: paths wherever the tree starts, views, labels, splits, and rows of no use."""

from __future__ import annotations

from pathlib import Path

import pytest

from medclip_debias.data.sources.detect import detect
from medclip_debias.errors import UserError
from tests.data.sources.trees import write_image, write_table

HEADER = "Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Edema,Support Devices"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two training patients, one for validation, in the small release's folder."""
    root = tmp_path / "archive" / "CheXpert-v1.0-small"
    rows = [
        "train/patient00001/study1/view1_frontal.jpg,Female,68,Frontal,AP,1.0,,",
        "train/patient00001/study1/view2_lateral.jpg,Female,68,Lateral,,1.0,,",
        "train/patient00002/study1/view1_frontal.jpg,Unknown,0,Frontal,,,-1.0,1.0",
    ]
    for row in rows:
        write_image(root / row.split(",")[0])
    write_table(root / "train.csv", HEADER, *(f"CheXpert-v1.0-small/{row}" for row in rows))
    name = "valid/patient64541/study1/view1_frontal.jpg"
    write_image(root / name)
    row = f"CheXpert-v1.0-small/{name},Male,73,Frontal,PA,0.0,1.0,0.0"
    write_table(root / "valid.csv", HEADER, row)
    return root


def add(root: Path, table: str, line: str) -> None:
    with (root / table).open("a") as file:
        file.write(line + "\n")


def test_views_are_those_of_the_table_and_an_unstated_one_is_said(root):
    found = detect(root)
    assert [i.view for i in found.images()] == ["AP", "LATERAL", "FRONTAL", "PA"]
    assert any(s.endswith("1 frontal images are neither AP nor PA.") for s in found.describe())


def test_labels_keep_uncertain_and_unmentioned_apart(root):
    labels = {study.study_id: study.labels for study in detect(root).studies()}
    assert labels["patient00001/study1"] == {
        "No Finding": 1.0,
        "Edema": None,
        "Support Devices": None,
    }
    assert labels["patient00002/study1"]["Edema"] == -1.0
    assert labels["patient64541/study1"]["Edema"] == 1.0


def test_the_later_test_set_has_paths_and_labels_alone(root):
    name = "test/patient64741/study1/view1_frontal.jpg"
    write_image(root / name)
    (root / "test_labels.csv").write_text(f"Path,No Finding,Edema\n{name},0,1\n")
    image = detect(root).images()[-1]
    assert (image.view, image.split, image.path) == ("FRONTAL", "test", root / name)


def test_a_path_that_names_a_study_alone_is_left_aside_and_counted(root):
    add(root, "valid.csv", "CheXpert-v1.0-small/valid/patient64541/study2,Male,73,,,0.0,,")
    found = detect(root)
    step = ("path of valid.csv names patient, study and image", "rows", 1, 2)
    assert step in found.steps()
    assert len(found.images()) == 4


def test_images_of_a_study_with_other_labels_are_said_and_present_counts(root):
    name = "valid/patient64541/study1/view2_frontal.jpg"
    write_image(root / name)
    add(root, "valid.csv", f"CheXpert-v1.0-small/{name},Male,73,Frontal,PA,0.0,0.0,1.0")
    found = detect(root)
    (study,) = found.studies(["patient64541/study1"])
    assert study.labels == {"No Finding": 0.0, "Edema": 1.0, "Support Devices": 1.0}
    assert any("the images of 1 studies have other labels" in s for s in found.describe())


def test_a_table_that_is_not_chexperts_is_not_taken(tmp_path):
    (tmp_path / "train.csv").write_text("image,label\n1.png,0\n")
    with pytest.raises(UserError, match="is not a known layout"):
        detect(tmp_path)
