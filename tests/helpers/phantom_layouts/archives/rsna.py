"""RSNA Pneumonia: DICOM files of square images, a row a box in pixels of 1024, three classes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar
from uuid import NAMESPACE_OID, uuid5

from medclip_debias.phantom.findings import Box
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import FrontalLayout, Row, id_in_split
from phantom_layouts.outlines import named_boxes
from phantom_layouts.rasters import Pixels, write_grey_dicom

LABELS, CLASSES = "stage_2_train_labels.csv", "stage_2_detailed_class_info.csv"
SIDE = 1024
FINDING = "Pneumonia"
ABNORMAL = "No Lung Opacity / Not Normal"


class Rsna(FrontalLayout):
    """An image is a patient of its own, as in the archive without its mapping."""

    kind = "rsna"
    title = "RSNA Pneumonia"
    square = True
    headers: ClassVar = {
        LABELS: ("patientId", "x", "y", "width", "height", "Target"),
        CLASSES: ("patientId", "class"),
    }

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        image = self.image_id(study, view)
        return f"stage_2_train_images/{image}.dcm" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return id_in_split(lambda n: str(uuid5(NAMESPACE_OID, f"{view.key} {n}")), study.split)

    def boxes_of(self, study: ContentStudy, view: ContentView) -> list[Box]:
        return named_boxes(view, {FINDING: FINDING}).get(FINDING, [])

    def write_image(
        self, path: Path, pixels: Pixels, study: ContentStudy, view: ContentView
    ) -> None:
        write_grey_dicom(path, pixels, study, view, PatientID=self.image_id(study, view))

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        image = self.image_id(study, view)
        scale = SIDE / view.width
        boxes: list[list[Any]] = [[s * scale for s in box] for box in self.boxes_of(study, view)]
        name = "Normal" if study.true_labels["No Finding"] else ABNORMAL
        for box in boxes or [[]]:
            yield LABELS, [image, *(box or [""] * 4), int(bool(boxes))]
            yield CLASSES, [image, "Lung Opacity" if boxes else name]
