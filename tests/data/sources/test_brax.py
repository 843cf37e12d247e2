"""BRAX: two kinds of files, numbers of studies that patients share, views by code."""

from __future__ import annotations

import numpy as np
import pytest

from medclip_debias.data.sources.detect import detect
from medclip_debias.errors import UserError
from tests.data.sources.trees import write_image, write_table

TABLE = "master_spreadsheet_update.csv"
HEADER = ",DicomPath,PngPath,PatientID,PatientAge,AccessionNumber,No Finding,Edema,ViewPosition"


def row(number: int, patient: str = "p1", view: str = "PA") -> str:
    path = f"id_{patient}/Study_{number}/Series_1/image-{number}"
    files = f"Anonymized_DICOMs/{path}.dcm,images/{path}.png"
    return f"{number},{files},{patient},85 or more,7,,1.0,{view}"


def test_a_number_that_two_patients_share_is_two_studies(tmp_path, write_dicom):
    rows = row(1), row(2, "p2"), row(3, "p2")
    write_table(tmp_path / "master_spreadsheet.csv", HEADER, *rows)  # as the first release has it
    files = [line.split(",")[1:3] for line in rows]
    for _, png in files[:2]:
        write_image(tmp_path / png)
    write_dicom(tmp_path / files[2][0], np.arange(400, dtype=np.uint16).reshape(20, 20))
    found = detect(tmp_path)
    assert found.kind == "brax"
    assert [study.study_id for study in found.studies()] == ["p1/7", "p2/7"]
    assert [study.labels["Edema"] for study in found.studies()] == [1.0, 1.0]
    # The PNG is read, and the DICOM file where there is no PNG.
    kinds = [image.path.suffix for image in found.images() if image.path.is_file()]
    assert kinds == [".png", ".png", ".dcm"]


def test_views_are_codes_and_a_blank_one_stays_blank_and_is_counted(tmp_path):
    views = {"AP": "AP", "L": "LATERAL", "RL": "LATERAL", "AP LLD": "AP LLD", "": "", "nan": ""}
    rows = (row(n, view=view) for n, view in enumerate(views))
    write_table(tmp_path / TABLE, HEADER, *rows)
    source = detect(tmp_path)
    assert [image.view for image in source.images()] == list(views.values())
    assert "2 unknown." in " ".join(source.describe())


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        (("PatientID,AccessionNumber", "p1,7"), "neither column PngPath nor DicomPath"),
        ((HEADER, row(1, patient="")), rf"no row of {TABLE} names an image"),
    ],
)
def test_a_table_that_names_no_image_is_a_sentence(tmp_path, lines, sentence):
    write_table(tmp_path / TABLE, *lines)
    with pytest.raises(UserError, match=sentence):
        detect(tmp_path)
