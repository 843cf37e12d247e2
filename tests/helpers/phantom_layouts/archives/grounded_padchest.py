"""PadChest-GR: frontal 16-bit PNG files, sentences with two readers' boxes, a master table.

A finding is a sentence of the report with the boxes of what it truly says is there. Both languages
hold the phantom's English.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from medclip_debias.phantom.catalogue import CLASSES, INDEX
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.truth import Statement
from phantom_layouts.archives.padchest import LABELS, PadChest
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import Layout, Row

REPORTS, MASTER = "grounded_reports_20240819.json", "master_table.csv"
SPLITS = {"train": "train", "validate": "validation", "test": "test"}
COLUMNS = ("StudyID", "ImageID", "label", "PatientID", "split")


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
        image = f"{self.image_id(study, view)}.png"
        sentences = [placed.sentence for placed in study.study.report.sentences]
        findings = [self._finding(study, view, s.text, s.statement) for s in sentences]
        yield REPORTS, {"StudyID": self.study_id(study), "ImageID": image, "findings": findings}
        of_image = [label for finding in findings for label in finding.get("labels", ())]
        for label in of_image or ["Normal"]:
            patient, split = self.patient_id(study), SPLITS[study.split]
            yield MASTER, [self.study_id(study), image, label, patient, split]

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
