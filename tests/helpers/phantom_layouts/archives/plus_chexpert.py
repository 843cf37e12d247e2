"""CheXpert Plus: DICOM files, a table of reports by section, labels as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from phantom_layouts.archives.chexpert import CHEXPERT_ORDER, CheXpert, label_row, patient_path
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import Row

TABLE = "df_chexpert_plus_240401.csv"
COLUMNS = (
    *("path_to_image", "path_to_dcm", "frontal_lateral", "ap_pa", "deid_patient_id", "report"),
    *("section_findings", "section_impression", "split"),
)
LABELS = "report_fixed.json"


class CheXpertPlus(CheXpert):
    """The archive has no test split of its own; here the column ``split`` says test, too."""

    kind = "chexpert_plus"
    title = "CheXpert Plus"
    lossless = True
    sections = ("findings", "impression")
    headers: ClassVar = {TABLE: COLUMNS, LABELS: ()}

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"DICOM/{patient_path(study, view)}.dcm"

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        path = patient_path(study, view)
        yield (
            TABLE,
            [
                *(f"{path}.jpg", f"{path}.dcm", "Frontal" if view.frontal else "Lateral"),
                *(view.stated if view.frontal else "", self.patient_id(study), study.report),
                *map(study.section, ("findings", "impression")),
                {"validate": "valid"}.get(study.split, study.split),
            ],
        )
        labels = label_row(study)
        values = {name: float(labels[name]) if name in labels else None for name in CHEXPERT_ORDER}
        yield LABELS, {"path_to_image": f"{path}.jpg", **values}

    def write_file(self, path: Path, rows: Sequence[Any]) -> None:
        if path.name == TABLE:
            super().write_file(path, rows)
            return
        path.write_text("\n".join([*map(json.dumps, rows), ""]), encoding="utf-8")
