"""PadChest and PadChest-GR: 16-bit PNG files; one table with lists in its cells, or sentences.

The reports are the phantom's, in English and not stemmed, without headings as PadChest's are. A
finding of PadChest-GR is a sentence with the boxes of what it truly says is there; both languages
hold the phantom's English.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from medclip_debias.phantom.catalogue import CLASSES, INDEX
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.truth import Statement
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import Layout, Row, id_in_split

TABLE = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
COLUMNS = (
    *("", "ImageID", "ImageDir", "StudyID", "PatientID", "Projection", "Pediatric", "Report"),
    *("MethodLabel", "Labels", "LabelsLocalizationsBySentence"),
)
LABELS = {
    "atelectasis": "laminar atelectasis",
    "cardiomegaly": "cardiomegaly",
    "edema": "pulmonary edema",
    "effusion": "pleural effusion",
    "hernia": "hiatal hernia",
    "line": "central venous catheter",
    "nodule": "nodule",
    "pacemaker": "pacemaker",
    "pneumonia": "pneumonia",
    "pneumothorax": "pneumothorax",
    "scoliosis": "scoliosis",
    "tube": "endotracheal tube",
}
"""PadChest's label of each type of finding."""


def labels_of(study: ContentStudy) -> list[str]:
    """PadChest's labels of what a study shows, each once; ``normal`` for nothing."""
    types = (CLASSES[INDEX[name]].type for name in study.findings)
    return list(dict.fromkeys(LABELS[kind] for kind in types)) or ["normal"]


class PadChest(Layout):
    """Three folders of images; lateral radiographs are there, as ``L``."""

    kind = "padchest"
    title = "PadChest"
    deep = True
    headers: ClassVar = {TABLE: COLUMNS}

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"{study.place % 3}/{self.image_id(study, view)}.png"

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        number = int(view.key.replace("-", "")[:15], 16)
        return f"216840111366964{number}_00-{study.place:03d}-{view.number:03d}"

    def study_id(self, study: ContentStudy) -> str:
        return f"2168401113669640{study.study.study_id}"

    def patient_id(self, study: ContentStudy) -> str:
        return id_in_split(lambda n: f"93{study.patient:06d}{n:04d}", study.split)

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        labels = labels_of(study)
        yield (
            TABLE,
            [
                str(number),
                f"{self.image_id(study, view)}.png",
                str(study.place % 3),
                self.study_id(study),
                self.patient_id(study),
                "L" if view.stated == "LATERAL" else view.stated,
                "No",
                " ".join(filter(None, map(study.section, ("findings", "impression")))),
                "Physician" if study.split == "test" else "RNN_model",
                repr(labels),
                repr([[label] for label in labels]),
            ],
        )


REPORTS, MASTER = "grounded_reports_20240819.json", "master_table.csv"
GR_SPLITS = {"train": "train", "validate": "validation", "test": "test"}
GR_COLUMNS = ("StudyID", "ImageID", "label", "PatientID", "split")


class PadChestGrounded(Layout):
    """The root holds the two tables and ``PadChest_GR``."""

    kind = "padchest_gr"
    title = "PadChest-GR"
    deep = True
    headers: ClassVar = {REPORTS: (), MASTER: GR_COLUMNS}

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
        findings = [self._finding(view, s.text, s.statement) for s in sentences]
        yield REPORTS, {"StudyID": self.study_id(study), "ImageID": image, "findings": findings}
        of_image = [label for finding in findings for label in finding.get("labels", ())]
        for label in of_image or ["Normal"]:
            patient, split = self.patient_id(study), GR_SPLITS[study.split]
            yield MASTER, [self.study_id(study), image, label, patient, split]

    def _finding(self, view: ContentView, text: str, statement: Statement) -> dict[str, Any]:
        present = [clause for clause in statement.clauses if clause.present]
        finding: dict[str, Any] = {"sentence_en": text, "sentence_es": text}
        finding["abnormal"] = bool(present)
        if not present:  # the other keys are absent then
            return finding
        return finding | {
            "boxes": [_corners(box, view) for box in shown(statement, view)],
            "extra_boxes": [],
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
