"""CheXpert Plus: files of either kind, reports by section, labels beside them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from medclip_debias.config import PrepareSettings
from medclip_debias.data.prepare import prepare
from medclip_debias.data.prepare.reading import Reading
from medclip_debias.data.sources.detect import detect
from tests.data.sources.trees import write_image

TABLE = "df_chexpert_plus_240401.csv"
COLUMNS = ("path_to_image", "path_to_dcm", "frontal_lateral", "ap_pa", "deid_patient_id", "split")
TEXTS = ("report", "section_findings", "section_impression")


def write(root: Path, rows: list[dict[str, str]]) -> None:
    with (root / TABLE).open("w", newline="") as file:
        table = csv.DictWriter(file, [*COLUMNS, *TEXTS])
        table.writeheader()
        table.writerows(rows)


def row(name: str, split: str = "train", **texts: str) -> dict[str, str]:
    path = f"{split}/{name}"
    patient = name.split("/")[0]
    return {
        "path_to_image": f"{path}.jpg",
        "path_to_dcm": f"{path}.dcm",
        "frontal_lateral": "Frontal",
        "ap_pa": "AP",
        "deid_patient_id": patient,
        "split": split,
        **texts,
    }


ROWS = [
    row("patient1/study1/view1_frontal", section_findings="Clear lungs.", section_impression=""),
    row("patient1/study2/view1_frontal", report="FINDINGS: Small effusion."),
    row("patient2/study1/view1_frontal", "valid", section_impression="Edema."),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, ROWS)
    for cells in ROWS:
        name = cells["path_to_image"].replace(".jpg", ".png")
        write_image(tmp_path / "PNG" / "PNG" / name)
    return tmp_path


def labels(root: Path, file: str, values: list[dict[str, float | None]]) -> None:
    lines = [
        json.dumps({"path_to_image": cells["path_to_image"], **value})
        for cells, value in zip(ROWS, values, strict=True)
    ]
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text("\n".join(lines) + "\n")


def test_dicom_is_read_where_both_are_there(root, write_dicom):
    path = root / "DICOM" / ROWS[0]["path_to_dcm"]
    path.parent.mkdir(parents=True)
    write_dicom(path, np.arange(400, dtype=np.uint16).reshape(20, 20))
    kinds = [image.path.suffix for image in detect(root).images()]
    assert kinds == [".dcm", ".png", ".png"]


def test_sections_make_the_report_and_else_the_whole_text(root):
    found = detect(root)
    reports = [study.report for study in found.studies()]
    assert reports == ["FINDINGS: Clear lungs.", "FINDINGS: Small effusion.", "IMPRESSION: Edema."]
    assert any("1 studies have neither section" in sentence for sentence in found.describe())


def test_another_report_beside_another_image_is_said(root):
    write(root, [*ROWS, row("patient1/study1/view2_frontal", section_findings="Other words.")])
    found = detect(root)
    assert next(iter(found.studies())).report == "FINDINGS: Clear lungs."
    assert any("1 studies have another report" in sentence for sentence in found.describe())


def test_labels_of_a_blank_section_are_left_aside_and_counted(root):
    """The labeller says "No Finding" of no text at all."""
    labels(root, "labels/impression_fixed.json", [{"No Finding": 1.0}] * 2 + [{"Edema": 1.0}])
    found = detect(root)
    assert [study.labels for study in found.studies()] == [{}, {}, {"Edema": 1.0}]
    step = "text behind a row of impression_fixed.json is not blank"
    assert (step, "label rows", 1, 3) in found.steps()


def test_labels_of_the_impression_go_before_those_of_the_report(root):
    nothing: list[dict[str, float | None]] = [{}] * 3
    labels(root, "report_fixed.json", nothing)
    labels(root, "impression_fixed.json", nothing)
    assert any("Labels: impression_fixed.json" in s for s in detect(root).describe())


def test_labels_of_other_images_are_counted(root):
    labels(root, "impression_fixed.json", [{"Edema": None}] * 3)
    with (root / "impression_fixed.json").open("a") as file:
        file.write('{"path_to_image": "train/patient9/study1/view1_frontal.jpg", "Edema": 1.0}\n')
    assert ("image of impression_fixed.json is in the source", "label rows", 3, 4) in detect(
        root
    ).steps()


def test_reports_alone_need_no_image(tmp_path):
    write(tmp_path, ROWS)
    alone, small = Reading(text_only=True), PrepareSettings(size=16)
    made = prepare(tmp_path, tmp_path / "o", small, workers=1, reading=alone)
    assert made.sentences["text"].tolist() == ["Clear lungs.", "Small effusion.", "Edema."]
