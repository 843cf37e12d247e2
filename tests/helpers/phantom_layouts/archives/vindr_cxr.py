"""VinDr-CXR: frontal DICOM files, three readers' labels and boxes in train, a consensus in test."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from medclip_debias.phantom.catalogue import CLASSES, INDEX
from medclip_debias.phantom.findings import Box
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import FrontalLayout, Row, id_in_split

FINDINGS = (
    *("Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Clavicle fracture"),
    *("Consolidation", "Edema", "Emphysema", "Enlarged PA", "ILD", "Infiltration"),
    *("Lung Opacity", "Lung cavity", "Lung cyst", "Mediastinal shift", "Nodule/Mass"),
    *("Pleural effusion", "Pleural thickening", "Pneumothorax", "Pulmonary fibrosis"),
    *("Rib fracture", "Other lesion", "COPD", "Lung tumor", "Pneumonia", "Tuberculosis"),
    *("Other diseases", "No finding"),
)
"""Columns of the label tables in the archive's order; the test table says Other disease."""

OF_TYPE = {
    "atelectasis": "Atelectasis",
    "cardiomegaly": "Cardiomegaly",
    "edema": "Edema",
    "effusion": "Pleural effusion",
    "hernia": "Other lesion",
    "nodule": "Nodule/Mass",
    "pneumonia": "Consolidation",
    "pneumothorax": "Pneumothorax",
    "scoliosis": "Other lesion",
}
"""The archive's finding of each type; devices are none."""

READERS = ("R1", "R2", "R3")
_CORNERS = ("x_min", "y_min", "x_max", "y_max")
LABELS, BOXES = "annotations/image_labels_{}.csv", "annotations/annotations_{}.csv"
_TEST = [name.replace("Other diseases", "Other disease") for name in FINDINGS]
_HEADERS = {
    LABELS.format("train"): ("image_id", "rad_id", *FINDINGS),
    BOXES.format("train"): ("image_id", "rad_id", "class_name", *_CORNERS),
    LABELS.format("test"): ("image_id", *_TEST),
    BOXES.format("test"): ("image_id", "class_name", *_CORNERS),
}


class VindrCxr(FrontalLayout):
    """The root holds ``train``, ``test`` and ``annotations``; validation lies in ``train``."""

    kind = "vindr_cxr"
    title = "VinDr-CXR"
    headers = _HEADERS

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"{_part(study)}/{self.image_id(study, view)}.dicom" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return id_in_split(
            lambda n: hashlib.md5(f"{view.key}/{n}".encode(), usedforsecurity=False).hexdigest(),
            study.split,
        )

    def boxes_of(self, study: ContentStudy, view: ContentView) -> list[Box]:
        boxes = [box for own in _found(view).values() for box in own]
        return boxes if study.split == "test" else boxes * len(READERS)

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        part, image, findings = _part(study), self.image_id(study, view), _found(view)
        for who in [[image, reader] for reader in READERS] if part == "train" else [[image]]:
            yield LABELS.format(part), [*who, *_cells(findings)]
            marked: list[tuple[str, Box | None]] = [
                (name, box) for name, own in findings.items() for box in own
            ]
            for name, box in marked or [("No finding", None)]:
                yield BOXES.format(part), [*who, name, *_corners(box)]


def _part(study: ContentStudy) -> str:
    return "test" if study.split == "test" else "train"


def _found(view: ContentView) -> dict[str, list[Box]]:
    found: dict[str, list[Box]] = {}
    for name, own in view.boxes.items():
        finding = OF_TYPE.get(CLASSES[INDEX[name]].type)
        if finding is not None:
            found.setdefault(finding, []).extend(own)
    return found


def _cells(found: dict[str, list[Any]]) -> list[str]:
    marked = set(found) | ({"Pneumonia"} if "Consolidation" in found else set())
    return [str(int(name in (marked or {"No finding"}))) for name in FINDINGS]


def _corners(box: Box | None) -> list[str]:
    if box is None:
        return [""] * 4
    x, y, width, height = box
    return [repr(value) for value in (x, y, x + width, y + height)]
