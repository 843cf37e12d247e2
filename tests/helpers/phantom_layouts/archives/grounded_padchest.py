"""PadChest-GR: frontal 16-bit PNG files, sentences with two readers' boxes, a master table.

A finding is a sentence of the report with the boxes of what it truly says is there. Both languages
hold the phantom's English.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, ClassVar

from medclip_debias.phantom.catalogue import CLASSES, INDEX
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.truth import Statement
from phantom_layouts.archives.padchest import LABELS, PadChest
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.defects import Kind, Row, again
from phantom_layouts.layout import Layout

REPORTS, MASTER = "grounded_reports_20240819.json", "master_table.csv"
SPLITS = {"train": "train", "validate": "validation", "test": "test"}
COLUMNS = (
    *("StudyID", "ImageID", "label", "boxes_count", "extra_boxes_count", "locations"),
    *("prior_study", "progression_status", "prior_imageID", "sentence_en", "sentence_es"),
    *("study_is_benchmark", "study_is_validation", "split", "PatientID", "patient_is_benchmark"),
    *("PatientBirth", "PatientSex_DICOM", "StudyDate_DICOM", "StudyDate", "PatientAge"),
    *("label_group", "Year"),
)


class PadChestGrounded(Layout):
    """The root holds the two tables and ``PadChest_GR``."""

    kind = "padchest_gr"
    title = "PadChest-GR"
    deep = True
    headers: ClassVar = {REPORTS: (), MASTER: COLUMNS}

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"PadChest_GR/{self.image_id(study, view)}.png" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return PadChest(self.settings).image_id(study, view)

    def study_id(self, study: ContentStudy) -> str:
        return PadChest(self.settings).study_id(study)

    def patient_id(self, study: ContentStudy) -> str:
        return f"94{study.patient:010d}"

    def boxes_of(self, study: ContentStudy, view: ContentView) -> list[Box]:
        sentences = (placed.sentence for placed in study.study.report.sentences)
        return [box for sentence in sentences for box in shown(sentence.statement, view)]

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        entry, image = self._entry(study, view), self.image_id(study, view)
        yield Row(REPORTS, study, view, entry, image)
        for cells in self._cells(study, view, entry):
            yield Row(MASTER, study, view, cells, image, main=False)

    def kinds(self, rows: list[Row]) -> Iterable[Kind]:
        def boxed(row: Row) -> bool:
            found = any(finding.get("boxes") for finding in row.cells["findings"])
            return found and self.readable(row.study, row.view)

        def box(*corners: float) -> Callable[[Row], None]:
            def change(row: Row) -> None:
                boxes = next(f["boxes"] for f in row.cells["findings"] if f.get("boxes"))
                boxes.append([*corners])

            return change

        def blank(row: Row) -> None:
            empty = {"sentence_en": "", "sentence_es": "", "abnormal": False}
            row.cells["findings"].append(empty)

        def master(row: Row) -> list[Row]:
            return [other for other in rows if other.file == MASTER and other.view is row.view]

        def remove(row: Row) -> None:
            for other in master(row):
                rows.remove(other)

        def stray(row: Row) -> None:
            for other in master(row):
                study, _, *cells = other.cells
                rows.append(replace(other, cells=[study, f"{row.name}-gone.png", *cells]))

        yield Kind("flat_box", "box has an area", box(0.4, 0.4, 0.4, 0.6), boxed)
        yield Kind("box_outside", "box lies in the image", box(1.1, 0.2, 1.3, 0.4), boxed)
        yield Kind("entry_twice", "entry of {file} is not a repeat", again)
        yield Kind("no_sentence", "sentence is not blank", blank)
        here, there = (f"image of {a} is in {b}" for a, b in ((REPORTS, MASTER), (MASTER, REPORTS)))
        yield Kind("no_master_row", here, remove, file=MASTER)
        yield Kind("no_entry", there, stray)

    def _entry(self, study: ContentStudy, view: ContentView) -> dict[str, Any]:
        return {
            "StudyID": self.study_id(study),
            "ImageID": f"{self.image_id(study, view)}.png",
            "PreviousStudyID": None,
            "PreviousImageID": None,
            "findings": [
                self._finding(study, view, placed.sentence.text, placed.sentence.statement)
                for placed in study.study.report.sentences
            ],
        }

    def _finding(
        self, study: ContentStudy, view: ContentView, text: str, statement: Statement
    ) -> dict[str, Any]:
        present = [clause for clause in statement.clauses if clause.present]
        finding: dict[str, Any] = {"sentence_en": text, "sentence_es": text}
        finding["abnormal"] = bool(present)
        if not present:  # the other keys are absent then
            return finding
        boxes = [_corners(box, view) for box in shown(statement, view)]
        return finding | {
            "boxes": boxes,
            # A second reader saw every other study.
            "extra_boxes": [_narrower(box) for box in boxes] if study.place % 2 else [],
            "labels": list(dict.fromkeys(LABELS[clause.finding] for clause in present)),
            "locations": [c.side for c in present if c.side],
            "progression": None,
        }

    def _cells(
        self, study: ContentStudy, view: ContentView, entry: dict[str, Any]
    ) -> list[list[Any]]:
        positive = [finding for finding in entry["findings"] if finding["abnormal"]]
        normal = {"labels": ["Normal"], "sentence_en": "", "sentence_es": ""}
        year = int(study.study.date[:4])
        return [
            [
                *(self.study_id(study), f"{self.image_id(study, view)}.png", label),
                *(len(f.get("boxes", ())), len(f.get("extra_boxes", ()))),
                *(repr(f.get("locations", [])), "", "", "", f["sentence_en"], f["sentence_es"]),
                *(True, False, SPLITS[study.split], self.patient_id(study), True),
                *(year - study.age, "F" if study.female else "M"),
                *(study.study.date, study.study.date, study.age, label, year),
            ]
            for f in positive or [normal]
            for label in f["labels"]
        ]


def shown(statement: Statement, view: ContentView) -> list[Box]:
    """Boxes of what a statement says is there and the image shows."""
    classes = [
        name
        for name in view.boxes
        if any(c.present and c.matches()[INDEX[name]] for c in statement.clauses)
    ]
    assert all(CLASSES[INDEX[name]].type in LABELS for name in classes)
    return [box for name in classes for box in view.boxes[name]]


def _corners(box: Box, view: ContentView) -> list[float]:
    x, y, width, height = box
    left, top = x / view.width, y / view.height
    return [left, top, (x + width) / view.width, (y + height) / view.height]


def _narrower(corners: list[float]) -> list[float]:
    left, top, right, bottom = corners
    return [left + 0.05 * (right - left), top, right, bottom]
