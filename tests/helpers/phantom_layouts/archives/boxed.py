"""Archives of frontal images with boxes or masks: ChestX-Det, ChestX-ray14, RSNA and SIIM.

Boxes are in pixels of images of 1024 x 1024, but for SIIM's, which are run lengths.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar
from uuid import NAMESPACE_OID, uuid5

from medclip_debias.data.masks import encode, runs_of
from medclip_debias.phantom.findings import Box
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import FrontalLayout, Row, id_in_split
from phantom_layouts.outlines import apart, named_boxes, outlined

SIDE = 1024
DET_FILES = {
    "train": "ChestX_Det_train.json",
    "validate": "ChestX_Det_train.json",
    "test": "ChestX_Det_test.json",
}
DET_NAMES = {
    "Atelectasis": "Atelectasis",
    "Cardiomegaly": "Cardiomegaly",
    "Pleural Effusion": "Effusion",
    "Lung Lesion": "Nodule",
    "Pneumonia": "Consolidation",
    "Pneumothorax": "Pneumothorax",
}


class ChestXDet(FrontalLayout):
    """Every image is a patient of its own: the archive does not say whose they are."""

    kind = "chestx_det"
    title = "ChestX-Det"
    square = True
    headers: ClassVar = dict.fromkeys(DET_FILES.values(), ())

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        folder = "test" if study.split == "test" else "train"
        image = self.image_id(study, view)
        return f"{folder}_data/{folder}/{image}.png" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        first = (study.place * 10 + view.number) * 1000
        return id_in_split(lambda n: str(first + n), study.split)

    def boxes_of(self, study: ContentStudy, view: ContentView) -> list[Box]:
        return [box for boxes in named_boxes(view, DET_NAMES).values() for box in boxes]

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        scale = SIDE / view.width
        syms, boxes, lines = [], [], []
        for name, own in named_boxes(view, DET_NAMES).items():
            for x, y, width, height in own:
                left, top = x * scale, y * scale
                right, bottom = (x + width) * scale, (y + height) * scale
                syms.append(name)
                boxes.append([left, top, right, bottom])
                lines.append([[left, top], [right, top], [right, bottom], [left, bottom]])
        image = f"{self.image_id(study, view)}.png"
        entry = {"file_name": image, "syms": syms, "boxes": boxes, "polygons": lines}
        yield DET_FILES[study.split], entry


NIH_TABLE, NIH_BOXES = "Data_Entry_2017.csv", "BBox_List_2017.csv"
NIH_HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)
NIH_BOX_HEADER = "Image Index,Finding Label,Bbox [x,y,w,h],,,"
NIH_LISTS = {
    "train": "train_val_list.txt",
    "validate": "train_val_list.txt",
    "test": "test_list.txt",
}
NIH_NAMES = {
    "Atelectasis": "Atelectasis",
    "Cardiomegaly": "Cardiomegaly",
    "Pleural Effusion": "Effusion",
    "Lung Lesion": "Nodule",
    "Pneumonia": "Infiltrate",  # as the table of boxes spells it
    "Pneumothorax": "Pneumothorax",
}
NIH_LABELS = {
    "atelectasis": "Atelectasis",
    "cardiomegaly": "Cardiomegaly",
    "edema": "Edema",
    "effusion": "Effusion",
    "hernia": "Hernia",
    "nodule": "Nodule",
    "pneumonia": "Infiltration",
    "pneumothorax": "Pneumothorax",
}


class ChestXray14(FrontalLayout):
    """Every image is a follow-up of its own; boxes are of test images, as in the archive."""

    kind = "chestxray14"
    title = "ChestX-ray14"
    names_patients = True
    square = True
    headers: ClassVar = {
        NIH_TABLE: (NIH_HEADER,),
        NIH_BOXES: (NIH_BOX_HEADER,),
        **dict.fromkeys(NIH_LISTS.values(), ()),
    }

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        folder = f"images_{study.place % 12 + 1:03d}/images"
        return f"{folder}/{self.image_id(study, view)}.png" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        follow_up = (study.number - 1) * 10 + view.number - 1
        return f"{int(self.patient_id(study)):08d}_{follow_up:03d}"

    def patient_id(self, study: ContentStudy) -> str:
        return id_in_split(lambda n: str(study.patient * 1000 + n), study.split)

    def boxes_of(self, study: ContentStudy, view: ContentView) -> list[Box]:
        found = named_boxes(view, NIH_NAMES) if study.split == "test" else {}
        return [box for boxes in found.values() for box in boxes]

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        types = dict.fromkeys(name.partition("_")[0] for name in study.findings)
        findings = [NIH_LABELS[name] for name in types if name in NIH_LABELS]
        image = self.image_id(study, view)
        cells = [
            *(f"{image}.png", "|".join(findings) or "No Finding", int(image[-3:])),
            *(self.patient_id(study), "060Y", "F" if study.study.female else "M"),
            *(view.stated, view.width, view.height, 0.143, 0.143, ""),
        ]
        yield NIH_TABLE, cells
        yield NIH_LISTS[study.split], cells[:1]
        boxes = named_boxes(view, NIH_NAMES) if study.split == "test" else {}
        for name, own in boxes.items():
            for box in own:
                sides = (value * SIDE / view.width for value in box)
                yield NIH_BOXES, [cells[0], name, *sides, "", "", ""]

    def write_file(self, path: Path, rows: Sequence[Any]) -> None:
        header = self.headers[path.name]
        lines = [*header, *(",".join(map(str, row)) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")


RSNA_LABELS, RSNA_CLASSES = "stage_2_train_labels.csv", "stage_2_detailed_class_info.csv"
ABNORMAL = "No Lung Opacity / Not Normal"


class Rsna(FrontalLayout):
    """An image is a patient of its own, as in the archive without its mapping."""

    kind = "rsna"
    title = "RSNA Pneumonia"
    square = True
    headers: ClassVar = {
        RSNA_LABELS: ("patientId", "x", "y", "width", "height", "Target"),
        RSNA_CLASSES: ("patientId", "class"),
    }

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        image = self.image_id(study, view)
        return f"stage_2_train_images/{image}.dcm" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return id_in_split(lambda n: str(uuid5(NAMESPACE_OID, f"{view.key} {n}")), study.split)

    def boxes_of(self, study: ContentStudy, view: ContentView) -> list[Box]:
        return named_boxes(view, {"Pneumonia": "Pneumonia"}).get("Pneumonia", [])

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        image = self.image_id(study, view)
        scale = SIDE / view.width
        boxes: list[list[Any]] = [[s * scale for s in box] for box in self.boxes_of(study, view)]
        name = "Normal" if study.true_labels["No Finding"] else ABNORMAL
        for box in boxes or [[]]:
            yield RSNA_LABELS, [image, *(box or [""] * 4), int(bool(boxes))]
            yield RSNA_CLASSES, [image, "Lung Opacity" if boxes else name]


SIIM_TABLE, SIIM_FOLDER = "train-rle.csv", "dicom-images-train"
SIIM_ROOT = "1.2.826.0.1.3680043.10.511.3"


class Siim(FrontalLayout):
    """Patients are known from the DICOM headers alone."""

    kind = "siim"
    title = "SIIM-ACR Pneumothorax"
    names_patients = True
    headers: ClassVar = {SIIM_TABLE: ("ImageId", " EncodedPixels")}

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        place = f"{SIIM_ROOT}.{study.place}"
        image = self.image_id(study, view)
        return f"{SIIM_FOLDER}/{place}/{place}.{view.number}/{image}.dcm" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return f"{SIIM_ROOT}.{study.place}.{view.number}.1"

    def patient_id(self, study: ContentStudy) -> str:
        return id_in_split(lambda n: f"{study.patient:06d}-{n:03d}", study.split)

    def boxes_of(self, study: ContentStudy, view: ContentView) -> list[Box]:
        return apart(named_boxes(view, {"Pneumothorax": "Pneumothorax"}).get("Pneumothorax", []))

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        image = self.image_id(study, view)
        for cell in [_cell(box, view) for box in self.boxes_of(study, view)] or ["-1"]:
            yield SIIM_TABLE, [image, f" {cell}"]


def _cell(box: Box, view: ContentView) -> str:
    runs = runs_of(encode(outlined([box], view.height, view.width)))
    return " ".join(map(str, runs[: len(runs) // 2 * 2]))
