"""SIIM-ACR Pneumothorax: DICOM files in folders of their ids, a row of run lengths a mask."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from medclip_debias.data.masks import encode, runs_of
from medclip_debias.phantom.findings import Box
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import FrontalLayout, Row, id_in_split
from phantom_layouts.outlines import apart, named_boxes, outlined
from phantom_layouts.rasters import Pixels, write_grey_dicom

TABLE, FOLDER = "train-rle.csv", "dicom-images-train"
FINDING = "Pneumothorax"
_ROOT = "1.2.826.0.1.3680043.10.511.3"


class Siim(FrontalLayout):
    """Patients are known from the DICOM headers alone."""

    kind = "siim"
    title = "SIIM-ACR Pneumothorax"
    names_patients = True
    headers: ClassVar = {TABLE: ("ImageId", " EncodedPixels")}

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        place = f"{_ROOT}.{study.place}"
        image = self.image_id(study, view)
        return f"{FOLDER}/{place}/{place}.{view.number}/{image}.dcm" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return f"{_ROOT}.{study.place}.{view.number}.1"

    def patient_id(self, study: ContentStudy) -> str:
        return id_in_split(lambda n: f"{study.patient:06d}-{n:03d}", study.split)

    def boxes_of(self, study: ContentStudy, view: ContentView) -> list[Box]:
        return apart(named_boxes(view, {FINDING: FINDING}).get(FINDING, []))

    def write_image(
        self, path: Path, pixels: Pixels, study: ContentStudy, view: ContentView
    ) -> None:
        write_grey_dicom(path, pixels, study, view, PatientID=self.patient_id(study))

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        image = self.image_id(study, view)
        for cell in [_cell(box, view) for box in self.boxes_of(study, view)] or ["-1"]:
            yield TABLE, [image, f" {cell}"]


def _cell(box: Box, view: ContentView) -> str:
    runs = runs_of(encode(outlined([box], view.height, view.width)))
    return " ".join(map(str, runs[: len(runs) // 2 * 2]))
