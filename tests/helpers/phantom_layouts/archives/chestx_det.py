"""ChestX-Det: PNG files of square images, lists of boxes and outlines in pixels of 1024."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from medclip_debias.phantom.findings import Box
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import FrontalLayout, Row, id_in_split
from phantom_layouts.outlines import named_boxes

SIDE = 1024
FILES = {
    "train": "ChestX_Det_train.json",
    "validate": "ChestX_Det_train.json",
    "test": "ChestX_Det_test.json",
}
NAMES = {
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
    headers: ClassVar = dict.fromkeys(FILES.values(), ())

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        folder = "test" if study.split == "test" else "train"
        image = self.image_id(study, view)
        return f"{folder}_data/{folder}/{image}.png" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        first = (study.place * 10 + view.number) * 1000
        return id_in_split(lambda n: str(first + n), study.split)

    def boxes_of(self, study: ContentStudy, view: ContentView) -> list[Box]:
        return [box for boxes in named_boxes(view, NAMES).values() for box in boxes]

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        scale = SIDE / view.width
        syms, boxes, lines = [], [], []
        for name, own in named_boxes(view, NAMES).items():
            for x, y, width, height in own:
                left, top = x * scale, y * scale
                right, bottom = (x + width) * scale, (y + height) * scale
                syms.append(name)
                boxes.append([left, top, right, bottom])
                lines.append([[left, top], [right, top], [right, bottom], [left, bottom]])
        image = f"{self.image_id(study, view)}.png"
        entry = {"file_name": image, "syms": syms, "boxes": boxes, "polygons": lines}
        yield FILES[study.split], entry
