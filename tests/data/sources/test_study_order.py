"""The order of a patient's studies, as each public archive tells it."""

from __future__ import annotations

import csv
from datetime import date

import pytest

from medclip_debias.data.prepare.earlier import before_each
from medclip_debias.data.sources.chexpert import CheXpertSource
from medclip_debias.data.sources.padchest import PadChestSource
from medclip_debias.data.sources.plus_chexpert import CheXpertPlusSource
from medclip_debias.errors import UserError


def table(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def test_chexpert_counts_the_studies_of_a_patient(tmp_path):
    names = ("p1/study2/view1_frontal", "p1/study10/view1_frontal", "p1/study1/view1_frontal")
    rows = [(f"CheXpert-v1.0/train/{n}.jpg", "F", "1", "Frontal", "AP", "1.0") for n in names]
    header = ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", "No Finding")
    table(tmp_path / "train.csv", header, rows)
    found, _ = before_each(CheXpertSource(tmp_path).study_order())
    assert found == {"p1/study2": "p1/study1", "p1/study10": "p1/study2"}


@pytest.mark.parametrize("ordered", [True, False])
def test_chexpert_plus_has_a_column_of_the_order(tmp_path, ordered):
    needed = ("path_to_image", "deid_patient_id", "split", "section_findings", "section_impression")
    header = (*needed, "patient_report_date_order") if ordered else needed
    rows = [
        (f"train/p1/study{n}/view1_frontal.jpg", "p1", "train", "Clear.", "", order)[: len(header)]
        for n, order in ((1, "3"), (2, "1.0"), (3, "2"), (4, ""))
    ]
    table(tmp_path / "df_chexpert_plus_240401.csv", header, rows)
    found, steps = before_each(CheXpertPlusSource(tmp_path).study_order())
    if ordered:
        assert found == {"p1/study3": "p1/study2", "p1/study1": "p1/study3"}
        assert steps[0][2:] == (3, 4)
    else:
        assert found == {f"p1/study{n}": f"p1/study{n - 1}" for n in (2, 3, 4)}


def test_padchest_has_days_without_times(tmp_path):
    header = ("ImageID", "ImageDir", "StudyID", "PatientID", "Projection", "Labels", "Report")
    rows = [
        (f"{n}.png", "0", study, "p", "PA", "['normal']", "normal .", day)
        for n, (study, day) in enumerate(
            [
                *(("a", "20140102"), ("a", "20140102"), ("b", "20140305.0"), ("c", "20140305")),
                *(("d", "20150101"), ("e", ""), ("f", "20160101")),
            ]
        )
    ]
    path = tmp_path / "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
    table(path, (*header, "StudyDate_DICOM"), rows)
    order = PadChestSource(tmp_path).study_order()
    assert order["a"] == ("p", (date(2014, 1, 2).toordinal(),))
    assert order["e"].moment is None
    assert before_each(order)[0] == {"b": "a", "c": "a", "f": "d"}  # d follows b and c of one day
    table(path, header, [row[:-1] for row in rows])
    with pytest.raises(UserError, match="StudyDate_DICOM"):
        PadChestSource(tmp_path).study_order()
