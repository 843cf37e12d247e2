"""ChestX-Det: PNG files of square images, lists of boxes and outlines in pixels of 1024."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medclip_debias.phantom.findings import Box
from phantom_layouts.content import Content, ContentStudy, ContentView
from phantom_layouts.defects import Defects
from phantom_layouts.layout import Layout, id_in_split
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


class ChestXDet(Layout):
    """Every image is a patient of its own: the archive does not say whose they are."""

    kind = "chestx_det"
    title = "ChestX-Det"
    source_kind = "chestx_det"
    lossless = True
    sections = ()
    square = True

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        folder = "test" if study.split == "test" else "train"
        image = self.image_id(study, view)
        return f"{folder}_data/{folder}/{image}.png" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        first = (study.place * 10 + view.number) * 1000
        return id_in_split(lambda n: str(first + n), study.split)

    def study_id(self, study: ContentStudy) -> str:
        return self.image_id(study, next(view for view in study.views if view.frontal))

    def patient_id(self, study: ContentStudy) -> str:
        return self.study_id(study)

    def owner_ids(self, study: ContentStudy, view: ContentView) -> tuple[str, str]:
        return self.image_id(study, view), self.image_id(study, view)

    def boxes(self, studies: Sequence[ContentStudy]) -> dict[str, list[Box]]:
        return {
            self.image_id(study, view): [
                box for own in named_boxes(view, NAMES).values() for box in own
            ]
            for study in studies
            for view in study.views
            if view.frontal
        }

    def write_tables(self, root: Path, content: Content, defects: Defects) -> None:
        lists: dict[str, list[dict[str, Any]]] = {name: [] for name in FILES.values()}
        found: list[tuple[str, int, dict[str, Any]]] = []
        for study, view in content.views():
            if view.frontal:
                name = FILES[study.split]
                entry = self._entry(study, view)
                lists[name].append(entry)
                found.append((name, study.place, entry))
        self.missing_images(root, content, defects)
        self.truncated_images(root, content, defects)
        self._defects(lists, found, defects)
        for name, entries in lists.items():
            (root / name).write_text(json.dumps(entries) + "\n", encoding="utf-8")

    def _entry(self, study: ContentStudy, view: ContentView) -> dict[str, Any]:
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
        return {"file_name": image, "syms": syms, "boxes": boxes, "polygons": lines}

    def _defects(
        self,
        lists: dict[str, list[dict[str, Any]]],
        found: list[tuple[str, int, dict[str, Any]]],
        defects: Defects,
    ) -> None:
        boxed = [item for item in found if item[2]["syms"]]

        def owner(item: tuple[str, int, dict[str, Any]]) -> int:
            return item[1]

        for name, _, entry in defects.choose(boxed, owner):
            entry["polygons"][0] = entry["polygons"][0][:2]
            step = f"outline of {name} has three points or more"
            defects.add("outline_of_two_points", name, entry["file_name"], "funnel", step)
        for name, _, entry in defects.choose(boxed, owner):
            entry["boxes"][0] = entry["boxes"][0][:3]
            step = f"box of {name} is four numbers"
            defects.add("box_of_three_numbers", name, entry["file_name"], "funnel", step)
        one = [item for item in boxed if len(item[2]["syms"]) == 1]
        for name, _, entry in defects.choose(one, owner):
            entry["boxes"], entry["polygons"] = [], []
            step = f"finding of {name} has a box of its own"
            defects.add("finding_without_box", name, entry["file_name"], "funnel", step)
        for name, _, entry in defects.choose(found, owner):
            lists[name].append(entry)
            step = f"entry of {name} is no repeat"
            defects.add("entry_twice", name, entry["file_name"], "funnel", step)
        for name, _, entry in defects.choose(found, owner):
            lists[name].append({"file_name": entry["file_name"], "syms": []})
            step = f"entry of {name} has a name and its lists"
            defects.add("entry_without_boxes", name, entry["file_name"], "funnel", step)
