"""CheXpert Plus: DICOM files, a table of reports by section, labels as lines of JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from medclip_debias.phantom.tables import write_csv
from phantom_layouts.archives.chexpert import CHEXPERT_ORDER, label_row, patient_path
from phantom_layouts.content import Content, ContentStudy, ContentView
from phantom_layouts.defects import Defects
from phantom_layouts.layout import Layout, owner_study

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
LEFTOVER = ".azDownload-00000000-0000-0000-0000-000000000000-"


class CheXpertPlus(Layout):
    """The archive has no test split of its own; here the column ``split`` says test, too."""

    kind = "chexpert_plus"
    title = "CheXpert Plus"
    source_kind = "chexpert_plus"
    lossless = True
    sections = ("findings", "impression")

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"DICOM/{patient_path(study, view)}.dcm"

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return patient_path(study, view).partition("/")[2]

    def study_id(self, study: ContentStudy) -> str:
        return f"{self.patient_id(study)}/study{study.number}"

    def patient_id(self, study: ContentStudy) -> str:
        return f"patient{study.patient:05d}"

    def write_tables(self, root: Path, content: Content, defects: Defects) -> None:
        views = list(content.views())
        rows = [self._row(study, view) for study, view in views]
        lines = [json.dumps(self._label_line(study, view)) for study, view in views]
        owners = {at: study.place for at, (study, _) in enumerate(views)}
        self.missing_images(root, content, defects)
        self.truncated_images(root, content, defects)
        self._dicom_defects(root, content, defects)
        labelled = [at for at, (study, _) in enumerate(views) if study.report_labels]
        for at in defects.choose(labelled, owners.__getitem__):
            lines[at] = lines[at][: len(lines[at]) // 2]
            step = f"line of {LABELS} is a JSON object"
            defects.add("broken_line", LABELS, f"row {at + 1}", "funnel", step)
        for at in defects.choose(labelled, owners.__getitem__):
            line = json.loads(lines[at])
            line[CHEXPERT_ORDER[0]] = 3.0
            lines[at] = json.dumps(line)
            step = f"label cell of {LABELS} has a value that the archive defines"
            defects.add("label_value", LABELS, f"row {at + 1}", "funnel", step)
        for at in defects.choose(list(owners), owners.__getitem__):
            rows.append(rows[at])
            where = f"row {len(rows) + 1}"
            defects.add("row_twice", TABLE, where, "funnel", f"row of {TABLE} is no repeat")
        write_csv(root / TABLE, COLUMNS, rows)
        (root / LABELS).write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _dicom_defects(self, root: Path, content: Content, defects: Defects) -> None:
        from pydicom import dcmread

        for study, view in defects.choose(self.readable(content), owner_study):
            file = self.image_file(study, view)
            dataset = dcmread(root / file)
            del dataset.HighBit
            dataset.save_as(root / file)
            step = "image is read though HighBit is missing"
            defects.add("no_high_bit", file, "", "funnel", step)
        for study, view in defects.choose(self.readable(content), owner_study):
            path = root / self.image_file(study, view)
            left = path.with_name(LEFTOVER + path.name)
            left.write_bytes(path.read_bytes()[:1000])
            file = left.relative_to(root).as_posix()
            defects.add("leftover", file, "", "describe", "leftovers of interrupted downloads")

    def _row(self, study: ContentStudy, view: ContentView) -> list[Any]:
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
        return [cells.get(name, "") for name in COLUMNS]

    def _label_line(self, study: ContentStudy, view: ContentView) -> dict[str, Any]:
        labels = label_row(study)
        line: dict[str, Any] = {"path_to_image": f"{patient_path(study, view)}.jpg"}
        for name in CHEXPERT_ORDER:
            line[name] = float(labels[name]) if name in labels else None
        return line
