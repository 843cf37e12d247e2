"""PadChest-GR: frontal 16-bit PNG files, sentences with two readers' boxes, a master table.

A finding is a sentence of the report with the boxes of what it truly says is there. Both languages
hold the phantom's English.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medclip_debias.phantom.catalogue import CLASSES, INDEX
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.tables import write_csv
from medclip_debias.phantom.truth import Statement
from phantom_layouts.archives.padchest import LABELS, PadChest
from phantom_layouts.content import Content, ContentStudy, ContentView
from phantom_layouts.defects import Defects
from phantom_layouts.layout import Layout, owner_study
from phantom_layouts.rasters import Pixels, write_deep_png

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
    source_kind = "padchest_gr"
    lossless = True
    sections = ("findings", "impression")

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"PadChest_GR/{self.image_id(study, view)}.png" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return PadChest(self.settings).image_id(study, view)

    def study_id(self, study: ContentStudy) -> str:
        return PadChest(self.settings).study_id(study)

    def patient_id(self, study: ContentStudy) -> str:
        return f"94{study.patient:010d}"

    def write_image(
        self, path: Path, pixels: Pixels, study: ContentStudy, view: ContentView
    ) -> None:
        del study, view
        write_deep_png(path, pixels)

    def boxes(self, studies: Sequence[ContentStudy]) -> dict[str, list[Box]]:
        return {
            self.image_id(study, view): [
                box
                for placed in study.study.report.sentences
                for box in shown(placed.sentence.statement, view)
            ]
            for study in studies
            for view in study.views
            if view.frontal
        }

    def write_tables(self, root: Path, content: Content, defects: Defects) -> None:
        held = [(study, view) for study, view in content.views() if view.frontal]
        entries = {self.image_id(*item): self._entry(*item) for item in held}
        rows = {self.image_id(*item): self._rows(*item) for item in held}
        more: list[dict[str, Any]] = []
        self.missing_images(root, content, defects)
        self.truncated_images(root, content, defects)
        boxed = [
            item
            for item in self.readable(content)
            if any(finding.get("boxes") for finding in entries[self.image_id(*item)]["findings"])
        ]
        kinds = (
            ("flat_box", [0.4, 0.4, 0.4, 0.6], "box has an area"),
            ("box_outside", [1.1, 0.2, 1.3, 0.4], "box lies in the image"),
        )
        for kind, corners, step in kinds:
            for item in defects.choose(boxed, owner_study):
                findings = entries[self.image_id(*item)]["findings"]
                next(f for f in findings if f.get("boxes"))["boxes"].append(corners)
                defects.add(kind, REPORTS, self.image_id(*item), "funnel", step)
        for item in defects.choose(held, owner_study):
            more.append(entries[self.image_id(*item)])
            step = f"entry of {REPORTS} is no repeat"
            defects.add("entry_twice", REPORTS, self.image_id(*item), "funnel", step)
        for item in defects.choose(held, owner_study):
            empty = {"sentence_en": "", "sentence_es": "", "abnormal": False}
            entries[self.image_id(*item)]["findings"].append(empty)
            step = "sentence is not blank"
            defects.add("no_sentence", REPORTS, self.image_id(*item), "funnel", step)
        for item in defects.choose(held, owner_study):
            del rows[self.image_id(*item)]
            step = f"image of {REPORTS} is in {MASTER}"
            defects.add("no_master_row", MASTER, self.image_id(*item), "funnel", step)
        for item in defects.choose(held, owner_study):
            name = f"{self.image_id(*item)}-gone"
            rows[name] = [[row[0], f"{name}.png", *row[2:]] for row in self._rows(*item)]
            step = f"image of {MASTER} is in {REPORTS}"
            defects.add("no_entry", REPORTS, name, "funnel", step)
        text = json.dumps([*entries.values(), *more], indent=1) + "\n"
        (root / REPORTS).write_text(text, encoding="utf-8")
        write_csv(root / MASTER, COLUMNS, (row for own in rows.values() for row in own))

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

    def _rows(self, study: ContentStudy, view: ContentView) -> list[list[Any]]:
        told = [
            finding for finding in self._entry(study, view)["findings"] if finding["abnormal"]
        ] or [{"labels": ["Normal"], "sentence_en": "", "sentence_es": ""}]
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
            for f in told
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
