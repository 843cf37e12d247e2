"""CheXlocalize: CheXpert's validation and test sets, with masks in COCO's run lengths."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from medclip_debias.data.masks import as_coco, encode
from medclip_debias.phantom.findings import Box
from phantom_layouts.archives.chexpert import HEADER, CheXpert, table_row
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import Row
from phantom_layouts.outlines import apart, named_boxes, outlined

MASKS = "CheXlocalize/gt_segmentations_{}.json"
SPLITS = {"validate": "val", "test": "test"}
NAMES = {
    "Atelectasis": "Atelectasis",
    "Cardiomegaly": "Cardiomegaly",
    "Catheter": "Support Devices",
    "Edema": "Edema",
    "Endotracheal Tube": "Support Devices",
    "Lung Lesion": "Lung Lesion",
    "Pacemaker": "Support Devices",
    "Pleural Effusion": "Pleural Effusion",
    "Pneumonia": "Airspace Opacity",
    "Pneumothorax": "Pneumothorax",
}
TASKS = (
    *("Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Lesion", "Airspace Opacity", "Edema"),
    *("Consolidation", "Atelectasis", "Pneumothorax", "Pleural Effusion", "Support Devices"),
)


class CheXlocalize(CheXpert):
    """Training studies have no place in it."""

    kind = "chexlocalize"
    title = "CheXlocalize"
    headers: ClassVar = {
        **{f"CheXpert/{name}_labels.csv": HEADER for name in SPLITS.values()},
        **{MASKS.format(name): () for name in SPLITS.values()},
    }

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        if study.split not in SPLITS:
            return ""
        return f"CheXpert/{SPLITS[study.split]}/{self.image_id(study, view)}.jpg"

    def boxes_of(self, study: ContentStudy, view: ContentView) -> list[Box]:
        return [box for own in _boxes(view).values() for box in own] if view.frontal else []

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        name, image = SPLITS[study.split], self.image_id(study, view)
        # The validation table names images as CheXpert's release does, in another folder.
        folder = "CheXpert-v1.0/valid" if name == "val" else name
        cells = table_row(f"{folder}/{image}.jpg", study, view)
        yield f"CheXpert/{name}_labels.csv", cells
        if view.frontal:
            yield MASKS.format(name), [image.replace("/", "_"), _masks(view)]

    def write_file(self, path: Path, rows: Sequence[Any]) -> None:
        if path.suffix == ".csv":
            super().write_file(path, rows)
        else:
            path.write_text(json.dumps(dict(rows)) + "\n", encoding="utf-8")


def _boxes(view: ContentView) -> dict[str, list[Box]]:
    return {name: apart(own) for name, own in named_boxes(view, NAMES).items()}


def _masks(view: ContentView) -> dict[str, Any]:
    boxes = _boxes(view)
    return {
        task: json.loads(as_coco(encode(outlined(boxes.get(task, []), view.height, view.width))))
        for task in TASKS
    }
