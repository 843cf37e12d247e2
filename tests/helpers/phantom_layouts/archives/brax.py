"""BRAX: PNG files, one table with CheXpert labels, no reports and no splits."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from medclip_debias.phantom.tables import write_csv
from phantom_layouts.archives.chexpert import CHEXPERT_ORDER
from phantom_layouts.content import Content, ContentStudy, ContentView
from phantom_layouts.defects import Defects
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
    source_kind = "brax"
    lossless = True
    sections = ()

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"images/{self._path(study, view)}.png"

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return self._path(study, view).rpartition("/")[2]

    def study_id(self, study: ContentStudy) -> str:
        return f"{self.patient_id(study)}/{study.number:010d}"

    def patient_id(self, study: ContentStudy) -> str:
        return id_in_split(lambda n: f"id_{_uuid('patient', study.patient, n)}", study.split)

    def write_tables(self, root: Path, content: Content, defects: Defects) -> None:
        views = list(content.views())
        rows = [self._row(at, study, view) for at, (study, view) in enumerate(views)]
        owners = {at: study.place for at, (study, _) in enumerate(views)}
        self.missing_images(root, content, defects)
        self.truncated_images(root, content, defects)
        for at in defects.choose(list(owners), owners.__getitem__):
            rows[at][COLUMNS.index("Edema")] = "2.0"
            step = f"label cell of {TABLE} has a value that the archive defines"
            defects.add("label_value", TABLE, f"row {at + 2}", "funnel", step)
        for at in defects.choose(list(owners), owners.__getitem__):
            rows[at][COLUMNS.index("AccessionNumber")] = ""
            step = f"row of {TABLE} is filled in (PngPath, PatientID, AccessionNumber)"
            defects.add("no_study", TABLE, f"row {at + 2}", "funnel", step)
        for at in defects.choose(list(owners), owners.__getitem__):
            rows.append(rows[at])
            step = f"row of {TABLE} is no repeat"
            defects.add("row_twice", TABLE, f"row {len(rows) + 1}", "funnel", step)
        write_csv(root / TABLE, COLUMNS, rows)

    def _path(self, study: ContentStudy, view: ContentView) -> str:
        uid = _uuid("study", study.place)
        series = _uuid("series", study.place, view.number)
        image = _uuid("image", view.key)
        return f"{self.patient_id(study)}/Study_{uid}/Series_{series}/image-{image}"

    def _row(self, at: int, study: ContentStudy, view: ContentView) -> list[Any]:
        path, labels = self._path(study, view), study.report_labels
        cells: dict[str, Any] = {
            "": at,
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
        return [cells.get(name, "") for name in COLUMNS]
