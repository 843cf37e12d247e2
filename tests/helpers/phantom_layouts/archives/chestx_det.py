"""ChestX-Det: PNG files of square images, lists of boxes and outlines in pixels of 1024."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar

from medclip_debias.phantom.findings import Box
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.defects import Kind, Row, again
from phantom_layouts.layout import FrontalLayout, id_in_split
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
        yield Row(FILES[study.split], study, view, entry, image)

    def kinds(self, rows: list[Row]) -> Iterable[Kind]:
        def cut(key: str, length: int) -> Callable[[Row], None]:
            def change(row: Row) -> None:
                row.cells[key][0] = row.cells[key][0][:length]

            return change

        def count(row: Row) -> int:
            return len(row.cells["syms"])

        def bare(row: Row) -> dict[str, Any]:
            return {"file_name": row.cells["file_name"], "syms": []}

        three, four = "outline of {file} has three points or more", "box of {file} is four numbers"
        own = "finding of {file} has a box of its own"
        lists = "entry of {file} has a name and its lists"
        yield Kind("outline_of_two_points", three, cut("polygons", 2), count)
        yield Kind("box_of_three_numbers", four, cut("boxes", 3), count)
        unboxed = partial(dict.update, boxes=[], polygons=[])
        yield Kind("finding_without_box", own, lambda r: unboxed(r.cells), lambda r: count(r) == 1)
        yield Kind("entry_twice", "entry of {file} is not a repeat", again)
        yield Kind("entry_without_boxes", lists, bare)
