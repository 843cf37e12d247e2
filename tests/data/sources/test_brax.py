"""BRAX: two kinds of files, numbers of studies that patients share, views by code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from medclip_debias.data.sources.detect import detect
from medclip_debias.errors import UserError
from tests.data.sources.trees import write_image, write_table

TABLE = "master_spreadsheet_update.csv"
HEADER = ",DicomPath,PngPath,PatientID,PatientAge,AccessionNumber,No Finding,Edema,ViewPosition"


def row(number: int, patient: str = "p1", accession: str = "7", view: str = "PA") -> str:
    path = f"id_{patient}/Study_{number}/Series_1/image-{number}"
    files = f"Anonymized_DICOMs/{path}.dcm,images/{path}.png"
    return f"{number},{files},{patient},85 or more,{accession},,1.0,{view}"


def write(root: Path, *rows: str, files: bool = True) -> None:
    write_table(root / TABLE, HEADER, *rows)
    for line in rows if files else ():
        write_image(root / line.split(",")[2])


def test_png_is_read_and_dicom_where_there_is_no_png(tmp_path, write_dicom):
    write(tmp_path, row(1), row(2))
    second = row(2).split(",")
    (tmp_path / second[2]).unlink()
    path = tmp_path / second[1]
    path.parent.mkdir(parents=True)
    write_dicom(path, np.arange(400, dtype=np.uint16).reshape(20, 20))
    assert [i.path.suffix for i in detect(tmp_path).images()] == [".png", ".dcm"]


def test_a_number_that_two_patients_share_is_two_studies(tmp_path):
    write(tmp_path, row(1, "p1"), row(2, "p2"), row(3, "p2"))
    found = detect(tmp_path)
    assert [study.study_id for study in found.studies()] == ["p1/7", "p2/7"]
    assert [study.labels["Edema"] for study in found.studies()] == [1.0, 1.0]


def test_views_are_codes_and_a_blank_one_stays_blank_and_is_counted(tmp_path):
    views = {"AP": "AP", "L": "LATERAL", "RL": "LATERAL", "AP LLD": "AP LLD", "": "", "nan": ""}
    write(tmp_path, *(row(n, view=view) for n, view in enumerate(views)))
    source = detect(tmp_path)
    assert [image.view for image in source.images()] == list(views.values())
    assert "2 unknown." in " ".join(source.describe())


def test_the_first_release_has_another_name(tmp_path):
    write(tmp_path, row(1))
    (tmp_path / TABLE).rename(tmp_path / "master_spreadsheet.csv")
    assert detect(tmp_path).kind == "brax"


def test_a_table_without_paths_is_a_sentence(tmp_path):
    (tmp_path / TABLE).write_text("PatientID,AccessionNumber,ViewPosition\np1,7,PA\n")
    with pytest.raises(UserError, match="neither column PngPath nor DicomPath"):
        detect(tmp_path)


def test_a_table_whose_rows_all_lack_something_is_a_sentence(tmp_path):
    write(tmp_path, row(1, patient=""), files=False)
    with pytest.raises(UserError, match=rf"no row of {TABLE} names an image"):
        detect(tmp_path)
