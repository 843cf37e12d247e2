"""CheXpert Plus: DICOM files, a table of reports by section, labels as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from phantom_layouts.archives.chexpert import CHEXPERT_ORDER, CheXpert, label_row, patient_path
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.defects import REPEAT, VALUE, Kind, Row, again, setting

TABLE = "df_chexpert_plus_240401.csv"
COLUMNS = (
    *("path_to_image", "path_to_dcm", "frontal_lateral", "ap_pa", "deid_patient_id"),
    *("patient_report_date_order", "report", "section_narrative", "section_clinical_history"),
    *("section_history", "section_comparison", "section_technique", "section_procedure_comments"),
    *("section_findings", "section_impression", "section_end_of_impression", "section_summary"),
    *("section_accession_number", "age", "sex", "race", "ethnicity", "interpreter_needed"),
    *("insurance_type", "recent_bmi", "deceased", "split"),
)
LABELS = "report_fixed.json"
LEFTOVERS = "leftovers of interrupted downloads"
LEFTOVER = ".azDownload-00000000-0000-0000-0000-000000000000-"


def _without_high_bit(row: Row) -> None:
    from pydicom import dcmread

    dataset = dcmread(row.cells)
    del dataset.HighBit
    dataset.save_as(row.cells)


def _add_leftover(row: Row) -> None:
    row.cells.with_name(LEFTOVER + row.cells.name).write_bytes(row.cells.read_bytes()[:1000])


class CheXpertPlus(CheXpert):
    """The archive has no test split of its own; here the column ``split`` says test, too."""

    kind = "chexpert_plus"
    title = "CheXpert Plus"
    lossless = True
    sections = ("findings", "impression")
    headers: ClassVar = {TABLE: COLUMNS, LABELS: ()}
    image_kinds = (
        Kind("no_high_bit", "image is read though HighBit is missing", _without_high_bit),
        Kind("leftover", LEFTOVERS, _add_leftover, shown="describe"),
    )

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"DICOM/{patient_path(study, view)}.dcm"

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        path = patient_path(study, view)
        cells = {
            "path_to_image": f"{path}.jpg",
            "path_to_dcm": f"{path}.dcm",
            "frontal_lateral": "Frontal" if view.frontal else "Lateral",
            "ap_pa": view.stated if view.frontal else "",
            "deid_patient_id": self.patient_id(study),
            "patient_report_date_order": study.number,
            "report": study.report,
            "section_findings": study.section("findings"),
            "section_impression": study.section("impression"),
            "section_accession_number": study.place,
            "age": study.age,
            "sex": "Female" if study.female else "Male",
            "split": {"validate": "valid"}.get(study.split, study.split),
        }
        yield Row(TABLE, study, view, [cells.get(name, "") for name in COLUMNS])
        labels = label_row(study)
        values = {name: float(labels[name]) if name in labels else None for name in CHEXPERT_ORDER}
        line = {"path_to_image": f"{path}.jpg", **values}
        labelled = bool(study.report_labels)
        yield Row(LABELS, study, view, line, f"row {number + 1}", main=labelled)

    def kinds(self, rows: list[Row]) -> Iterable[Kind]:
        def cut(row: Row) -> None:
            line = json.dumps(row.cells)
            row.cells = line[: len(line) // 2]

        def in_labels(row: Row) -> bool:
            return row.file == LABELS

        yield Kind("broken_line", "line of {file} is a JSON object", cut, in_labels)
        yield Kind("label_value", VALUE, setting(CHEXPERT_ORDER[0], 3.0), in_labels)
        yield Kind("row_twice", REPEAT, again, lambda row: row.file == TABLE)

    def write_file(self, path: Path, rows: Sequence[Any]) -> None:
        if path.name == TABLE:
            super().write_file(path, rows)
            return
        lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
