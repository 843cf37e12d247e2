"""BRAX: PNG files, one table with CheXpert labels, no reports and no splits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, ClassVar

from phantom_layouts.archives.chexpert import CHEXPERT_ORDER
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.defects import REPEAT, VALUE, Kind, Row, again, setting
from phantom_layouts.layout import Layout, id_in_split

TABLE = "master_spreadsheet_update.csv"
COLUMNS = (
    *("", "DicomPath", "PngPath", "PatientID", "PatientSex", "PatientAge", "AccessionNumber"),
    *("StudyDate", *CHEXPERT_ORDER, "ViewPosition", "Rows", "Columns", "Manufacturer"),
)


def _uuid(*parts: object) -> str:
    digits = hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()
    return "-".join((digits[:8], digits[8:16], digits[16:24], digits[24:32], digits[32:40]))


class Brax(Layout):
    """As after a download of the PNG files alone: the DICOM files are named and not there."""

    kind = "brax"
    title = "BRAX"
    sections = ()
    headers: ClassVar = {TABLE: COLUMNS}

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"images/{self._path(study, view)}.png"

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return self._path(study, view).rpartition("/")[2]

    def study_id(self, study: ContentStudy) -> str:
        return f"{self.patient_id(study)}/{study.number:010d}"

    def patient_id(self, study: ContentStudy) -> str:
        return id_in_split(lambda n: f"id_{_uuid('patient', study.patient, n)}", study.split)

    def kinds(self, rows: list[Row]) -> Iterable[Kind]:
        filled = "row of {file} is filled in (PngPath, PatientID, AccessionNumber)"
        yield Kind("label_value", VALUE, setting(COLUMNS.index("Edema"), "2.0"))
        yield Kind("no_study", filled, setting(COLUMNS.index("AccessionNumber"), ""))
        yield Kind("row_twice", REPEAT, again)

    def _path(self, study: ContentStudy, view: ContentView) -> str:
        uid = _uuid("study", study.place)
        series = _uuid("series", study.place, view.number)
        image = _uuid("image", view.key)
        return f"{self.patient_id(study)}/Study_{uid}/Series_{series}/image-{image}"

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        path, labels = self._path(study, view), study.report_labels
        cells: dict[str, Any] = {
            "": number,
            "DicomPath": f"Anonymized_DICOMs/{path}.dcm",
            "PngPath": f"images/{path}.png",
            "PatientID": self.patient_id(study),
            "PatientSex": "F" if study.female else "M",
            "PatientAge": "85 or more" if study.age >= 85 else study.age // 5 * 5,
            "AccessionNumber": f"{study.number:010d}",
            "StudyDate": study.study.date,
            "ViewPosition": "L" if view.position == "LATERAL" else view.stated,
            "Rows": view.height,
            "Columns": view.width,
            "Manufacturer": 1,
            **{name: f"{value:.1f}" for name, value in labels.items()},
        }
        yield Row(TABLE, study, view, [cells.get(name, "") for name in COLUMNS])
