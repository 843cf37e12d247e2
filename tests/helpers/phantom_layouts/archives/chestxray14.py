"""ChestX-ray14: PNG files of square images, findings by image, boxes in pixels of 1024."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from medclip_debias.phantom.findings import Box
from phantom_layouts.content import Content, ContentStudy, ContentView
from phantom_layouts.defects import Defects
from phantom_layouts.layout import Layout, id_in_split
from phantom_layouts.outlines import Named, named_boxes
from phantom_layouts.rasters import Pixels, write_png

TABLE, BOXES = "Data_Entry_2017.csv", "BBox_List_2017.csv"
HEADER = (
    "Image Index,Finding Labels,Follow-up #,Patient ID,Patient Age,Patient Gender,View Position,"
    "OriginalImage[Width,Height],OriginalImagePixelSpacing[x,y],"
)
BOX_HEADER = "Image Index,Finding Label,Bbox [x,y,w,h],,,"
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


class ChestXray14(Layout):
    """Every image is a follow-up of its own; boxes are of test images, as in the archive."""

    kind = "chestxray14"
    title = "ChestX-ray14"
    source_kind = "chestxray14"
    lossless = True
    sections = ()
    square = True

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        folder = f"images_{study.place % 12 + 1:03d}/images"
        return f"{folder}/{self.image_id(study, view)}.png" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        follow_up = (study.number - 1) * 10 + view.number - 1
        return f"{int(self.patient_id(study)):08d}_{follow_up:03d}"

    def study_id(self, study: ContentStudy) -> str:
        return self.image_id(study, next(view for view in study.views if view.frontal))

    def owner_ids(self, study: ContentStudy, view: ContentView) -> tuple[str, str]:
        return self.image_id(study, view), self.patient_id(study)

    def patient_id(self, study: ContentStudy) -> str:
        return id_in_split(lambda n: str(study.patient * 1000 + n), study.split)

    def boxes(self, studies: Sequence[ContentStudy]) -> dict[str, list[Box]]:
        return {
            self.image_id(study, view): [box for own in found.values() for box in own]
            for study, view, found in self._boxed(studies)
        }

    def write_image(
        self,
        path: Path,
        pixels: Pixels,
        study: ContentStudy,
        view: ContentView,
    ) -> None:
        if study.place % 5:
            write_png(path, pixels)
            return
        grey = Image.fromarray(pixels)
        bands = (grey, grey, grey, Image.new("L", grey.size, 255))
        Image.merge("RGBA", bands).save(path, format="PNG", compress_level=1)

    def write_tables(self, root: Path, content: Content, defects: Defects) -> None:
        views = [(s, v) for s, v in content.views() if v.frontal]
        rows = [self._row(study, view) for study, view in views]
        boxes = [
            [f"{self.image_id(study, view)}.png", name, *(_in_1024(value, view) for value in box)]
            for study, view, found in self._boxed(content.studies)
            for name, own in found.items()
            for box in own
        ]
        owners = {row[0]: study.place for row, (study, _) in zip(rows, views, strict=True)}
        lists: dict[str, list[str]] = {"train_val_list.txt": [], "test_list.txt": []}
        for row, (study, _) in zip(rows, views, strict=True):
            name = "test_list.txt" if study.split == "test" else "train_val_list.txt"
            lists[name].append(row[0])
        self.missing_images(root, content, defects)
        self.truncated_images(root, content, defects)
        self._defects(rows, boxes, owners, defects)
        _write(root / TABLE, HEADER, [[*row, ""] for row in rows])
        _write(root / BOXES, BOX_HEADER, [[*row, "", "", ""] for row in boxes])
        for name, images in lists.items():
            (root / name).write_text("\n".join(images) + "\n", encoding="utf-8")

    def _row(self, study: ContentStudy, view: ContentView) -> list[Any]:
        kinds = dict.fromkeys(name.partition("_")[0] for name in study.findings)
        named = [_LABELS[kind] for kind in kinds if kind in _LABELS]
        image = self.image_id(study, view)
        return [
            *(f"{image}.png", "|".join(named) or "No Finding", int(image[-3:])),
            *(self.patient_id(study), f"{study.age:03d}Y", "F" if study.female else "M"),
            *(view.stated, view.width, view.height, 0.143, 0.143),
        ]

    def _boxed(
        self, studies: Sequence[ContentStudy]
    ) -> list[tuple[ContentStudy, ContentView, Named]]:
        return [
            (study, view, named_boxes(view, NAMES))
            for study in studies
            for view in study.views
            if study.split == "test" and view.frontal
        ]

    def _defects(
        self,
        rows: list[list[Any]],
        boxes: list[list[Any]],
        owners: dict[str, int],
        defects: Defects,
    ) -> None:
        def owner(row: list[Any]) -> int:
            return owners[row[0]]

        for row in defects.choose([r for r in rows if r[1] != "No Finding"], owner):
            row[1] = f"No Finding|{row[1]}"
            step = "'No Finding' stands alone (else the finding counts)"
            defects.add("finding_and_none", TABLE, row[0], "funnel", step)
        for row in defects.choose(rows, owner):
            row[1] = f"{row[1]}|Consolidaton"
            step = "finding is one of the archive's"
            defects.add("unknown_finding", TABLE, row[0], "funnel", step)
        for row in defects.choose(rows, owner):
            rows.append(list(row))
            where = f"row {len(rows) + 1}"
            defects.add("row_twice", TABLE, where, "funnel", f"row of {TABLE} is no repeat")
        for row in defects.choose(boxes, owner):
            row[3] = ""
            step = f"row of {BOXES} has a finding and four numbers"
            defects.add("box_without_number", BOXES, row[0], "funnel", step)
        for row in defects.choose(rows, owner):
            boxes.append([f"9{row[0][1:]}", "Mass", 1.0, 2.0, 3.0, 4.0])
            step = f"box of {BOXES} has its image in the table"
            defects.add("box_of_no_image", BOXES, boxes[-1][0], "funnel", step)


def _in_1024(value: float, view: ContentView) -> float:
    return value * SIDE / view.width


def _write(path: Path, header: str, rows: list[list[Any]]) -> None:
    lines = [header, *(",".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
