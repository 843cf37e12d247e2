"""CheXpert: paths wherever the tree starts, views, labels, splits, and rows of no use."""

from __future__ import annotations

from pathlib import Path

import pytest

from medclip_debias.data.sources.detect import detect
from tests.data.sources.counts import step
from tests.data.sources.trees import write_image, write_table

HEADER = "Path,Sex,Age,Frontal/Lateral,AP/PA,No Finding,Edema,Support Devices"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two training patients, one for validation, in the small release's folder."""
    root = tmp_path / "archive" / "CheXpert-v1.0-small"
    rows = [
        "train/patient00001/study1/view1_frontal.jpg,Female,68,Frontal,AP,1.0,,",
        "train/patient00001/study1/view2_lateral.jpg,Female,68,Lateral,,1.0,,",
        "train/patient00002/study1/view1_frontal.jpg,Unknown,0,Frontal,,2.0,-1.0,1.0",
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


def test_views_and_labels_are_those_of_the_tables(root):
    found = detect(root)
    assert [i.view for i in found.images()] == ["AP", "LATERAL", "FRONTAL", "PA"]
    assert any(s.endswith("1 frontal images are neither AP nor PA.") for s in found.describe())
    labels = {study.study_id: tuple(study.labels.values()) for study in found.studies()}
    assert labels == {  # no finding, edema, support devices
        "patient00001/study1": (1.0, None, None),
        "patient00002/study1": (None, -1.0, 1.0),
        "patient64541/study1": (0.0, 1.0, 0.0),
    }
    assert step(found, "label cell of train.csv has a value that the archive defines") == (4, 5)


def test_the_later_test_set_has_paths_and_labels_alone(root):
    name = "test/patient64741/study1/view1_frontal.jpg"
    write_image(root / name)
    (root / "test_labels.csv").write_text(f"Path,No Finding,Edema\n{name},0,1\n")
    image = detect(root).images()[-1]
    assert (image.view, image.split, image.path) == ("FRONTAL", "test", root / name)


def test_a_path_that_names_a_study_alone_is_left_aside_and_counted(root):
    add(root, "valid.csv", "CheXpert-v1.0-small/valid/patient64541/study2,Male,73,,,0.0,,")
    found = detect(root)
    assert step(found, "path of valid.csv names patient, study and image") == (1, 2)
    assert len(found.images()) == 4


def test_images_of_a_study_with_other_labels_are_said_and_present_counts(root):
    name = "valid/patient64541/study1/view2_frontal.jpg"
    add(root, "valid.csv", f"CheXpert-v1.0-small/{name},Male,73,Frontal,PA,0.0,0.0,1.0")
    found = detect(root)
    (study,) = found.studies(["patient64541/study1"])
    assert study.labels == {"No Finding": 0.0, "Edema": 1.0, "Support Devices": 1.0}
    assert any("the images of 1 studies have other labels" in s for s in found.describe())
