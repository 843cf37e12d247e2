"""ChestX-ray14: PNG files of square images, findings by image, boxes in pixels of 1024."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from medclip_debias.phantom.findings import Box
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import FrontalLayout, Row, id_in_split
from phantom_layouts.outlines import named_boxes
from phantom_layouts.rasters import Pixels

TABLE, BOXES = "Data_Entry_2017.csv", "BBox_List_2017.csv"
HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)
BOX_HEADER = "Image Index,Finding Label,Bbox [x,y,w,h],,,"
LISTS = {
    "train": "train_val_list.txt",
    "validate": "train_val_list.txt",
    "test": "test_list.txt",
}
SIDE = 1024
NAMES = {
    "Atelectasis": "Atelectasis",
    "Cardiomegaly": "Cardiomegaly",
    "Pleural Effusion": "Effusion",
    "Lung Lesion": "Nodule",
    "Pneumonia": "Infiltrate",  # as the table of boxes spells it
    "Pneumothorax": "Pneumothorax",
}
_LABELS = {
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
        TABLE: (HEADER,),
        BOXES: (BOX_HEADER,),
        **dict.fromkeys(LISTS.values(), ()),
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
        found = named_boxes(view, NAMES) if study.split == "test" else {}
        return [box for boxes in found.values() for box in boxes]

    def write_image(
        self, path: Path, pixels: Pixels, study: ContentStudy, view: ContentView
    ) -> None:
        if study.place % 5:
            super().write_image(path, pixels, study, view)
            return
        grey = Image.fromarray(pixels)
        bands = (grey, grey, grey, Image.new("L", grey.size, 255))
        Image.merge("RGBA", bands).save(path, format="PNG", compress_level=1)

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        types = dict.fromkeys(name.partition("_")[0] for name in study.findings)
        findings = [_LABELS[name] for name in types if name in _LABELS]
        image = self.image_id(study, view)
        cells = [
            *(f"{image}.png", "|".join(findings) or "No Finding", int(image[-3:])),
            *(self.patient_id(study), f"{study.age:03d}Y", "F" if study.female else "M"),
            *(view.stated, view.width, view.height, 0.143, 0.143, ""),
        ]
        yield TABLE, cells
        yield LISTS[study.split], cells[:1]
        boxes = named_boxes(view, NAMES) if study.split == "test" else {}
        for name, own in boxes.items():
            for box in own:
                sides = (value * SIDE / view.width for value in box)
                yield BOXES, [cells[0], name, *sides, "", "", ""]

    def write_file(self, path: Path, rows: Sequence[Any]) -> None:
        header = self.headers[path.name]
        lines = [*header, *(",".join(map(str, row)) for row in rows)]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
