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
from medclip_debias.errors import UserError
from tests.data.sources.counts import step
from tests.data.sources.trees import write_image

TABLE = "df_chexpert_plus_240401.csv"


def write(root: Path, *rows: dict[str, str]) -> None:
    names = dict.fromkeys(name for row in rows for name in row)
    with (root / TABLE).open("w", newline="") as file:
        table = csv.DictWriter(file, names)
        table.writeheader()
        table.writerows(rows)


def row(name: str, split: str = "train", **texts: str) -> dict[str, str]:
    cells = {"path_to_image": f"{split}/{name}.jpg", "path_to_dcm": f"{split}/{name}.dcm"}
    sides = {"frontal_lateral": "Frontal", "ap_pa": "AP", "split": split}
    blank = dict.fromkeys(("report", "section_findings", "section_impression"), "")
    return cells | sides | {"deid_patient_id": name.split("/")[0]} | blank | texts


ROWS = [
    row("patient1/study1/view1_frontal", section_findings="Clear lungs."),
    row("patient1/study2/view1_frontal", report="FINDINGS: Small effusion."),
    row("patient2/study1/view1_frontal", "valid", section_impression="Edema."),
]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, *ROWS)
    for cells in ROWS:
        name = cells["path_to_image"].replace(".jpg", ".png")
        write_image(tmp_path / "PNG" / "PNG" / name)
    return tmp_path


def labels(root: Path, file: str, *values: dict[str, float]) -> None:
    lines = [
        json.dumps({"path_to_image": cells["path_to_image"], **value})
        for cells, value in zip(ROWS, values, strict=True)
    ]
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text("\n".join(lines) + "\n")


def test_dicom_is_read_where_both_are_there_and_no_leftover_of_a_download(root, write_dicom):
    path = root / "DICOM" / ROWS[0]["path_to_dcm"]
    write_dicom(path, np.arange(400, dtype=np.uint16).reshape(20, 20))
    path.with_name(f".azDownload-0-{path.name}").write_bytes(b"DICM")
    source = detect(root)
    assert [image.path.suffix for image in source.images()] == [".dcm", ".png", ".png"]
    assert any("1 files are leftovers of interrupted downloads" in s for s in source.describe())


def test_sections_make_the_report_and_else_the_whole_text(root):
    write(root, *ROWS, row("patient1/study1/view2_frontal", section_findings="Other words."))
    found = detect(root)
    reports = [study.report for study in found.studies()]
    assert reports == ["FINDINGS: Clear lungs.", "FINDINGS: Small effusion.", "IMPRESSION: Edema."]
    said = " ".join(found.describe())
    assert "1 studies have neither section" in said
    assert "1 studies have another report" in said


def test_labels_of_a_blank_section_are_left_aside_and_all_that_is_odd_is_counted(root):
    """The labeller says "No Finding" of no text at all."""
    name = "impression_fixed.json"
    nothing, edema = {"No Finding": 1.0}, {"No Finding": 2.0, "Edema": 1.0}
    labels(root, f"labels/{name}", nothing, nothing, edema)
    labels(root, "report_fixed.json", *[nothing] * 3)  # those of the impression go before these
    with (root / "labels" / name).open("a") as file:
        file.write('{"path_to_image": "train/patient9/study1/view1_frontal.jpg", "Edema": 1.0}\n{"')
    found = detect(root)
    last = {"No Finding": None, "Edema": 1.0}
    assert [study.labels for study in found.studies()] == [{}, {}, last]
    assert step(found, f"line of {name} is a JSON object") == (4, 5)
    assert step(found, f"image of {name} is in the source") == (3, 4)
    assert step(found, f"text behind a row of {name} is not blank") == (1, 3)
    assert step(found, f"label cell of {name} has a value") == (1, 2)


def test_labels_of_other_images_are_refused(root):
    rows = [{"path_to_image": f"CheXpert/{n}.jpg", "Edema": 1.0} for n in range(3)]
    (root / "impression_fixed.json").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match="0 of its 3 ids in column 'path_to_image' are among the 3"):
        detect(root)


def test_reports_alone_need_no_image(tmp_path):
    write(tmp_path, *ROWS)
    alone, small = Reading(text_only=True), PrepareSettings(size=16)
    made = prepare(tmp_path, tmp_path / "o", small, workers=1, reading=alone)
    assert made.sentences["text"].tolist() == ["Clear lungs.", "Small effusion.", "Edema."]
