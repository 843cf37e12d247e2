"""CheXlocalize: CheXpert's validation and test sets, with masks in COCO's run lengths."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medclip_debias.data.masks import as_coco, encode
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.tables import write_csv
from phantom_layouts.archives.chexpert import CHEXPERT_ORDER, CheXpert
from phantom_layouts.content import Content, ContentStudy, ContentView
from phantom_layouts.defects import Defects
from phantom_layouts.outlines import apart, named_boxes, outlined

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
    source_kind = "chexlocalize"

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        if study.split not in SPLITS:
            return ""
        return f"CheXpert/{SPLITS[study.split]}/{self.image_id(study, view)}.jpg"

    def boxes(self, studies: Sequence[ContentStudy]) -> dict[str, list[Box]]:
        return {
            self.image_id(study, view): [box for own in _boxes(view).values() for box in own]
            for study in studies
            for view in study.views
            if study.split in SPLITS and view.frontal
        }

    def write_tables(self, root: Path, content: Content, defects: Defects) -> None:
        self.missing_images(root, content, defects)
        self.truncated_images(root, content, defects)
        found: list[tuple[str, int, dict[str, Any], str]] = []
        masks: dict[str, dict[str, Any]] = {name: {} for name in SPLITS.values()}
        rows: dict[str, list[list[Any]]] = {name: [] for name in SPLITS.values()}
        for study, view in content.views():
            if study.split not in SPLITS:
                continue
            name = SPLITS[study.split]
            rows[name].append(self._label_row(name, study, view))
            if view.frontal:
                key = self.image_id(study, view).replace("/", "_")
                masks[name][key] = _masks(view)
                found.append((name, study.place, masks[name][key], key))
        for name, _, own, key in defects.choose(found, lambda item: item[1]):
            own["Edema"] = {"size": own["Edema"]["size"], "counts": "!"}
            file = f"gt_segmentations_{name}.json"
            step = f"mask of {file} can be read"
            defects.add("broken_mask", f"CheXlocalize/{file}", key, "funnel", step)
        for name, _, own, key in defects.choose(found, lambda item: item[1]):
            masks[name][f"patient99{key[9:]}"] = own
            file = f"gt_segmentations_{name}.json"
            step = f"image of {file} is in the labels' table"
            defects.add("mask_of_no_image", f"CheXlocalize/{file}", key, "funnel", step)
        (root / "CheXlocalize").mkdir()
        for name, content_of in masks.items():
            path = root / "CheXlocalize" / f"gt_segmentations_{name}.json"
            path.write_text(json.dumps(content_of) + "\n", encoding="utf-8")
            header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *CHEXPERT_ORDER]
            write_csv(root / "CheXpert" / f"{name}_labels.csv", header, rows[name])

    def _label_row(self, name: str, study: ContentStudy, view: ContentView) -> list[Any]:
        # The validation table names images as CheXpert's release does, in another folder.
        folder = "CheXpert-v1.0/valid" if name == "val" else name
        labels = study.true_labels
        return [
            f"{folder}/{self.image_id(study, view)}.jpg",
            *("Female" if study.female else "Male", study.age),
            *("Frontal" if view.frontal else "Lateral", view.stated if view.frontal else ""),
            *(f"{labels[column]:.1f}" for column in CHEXPERT_ORDER),
        ]


def _boxes(view: ContentView) -> dict[str, list[Box]]:
    return {name: apart(own) for name, own in named_boxes(view, NAMES).items()}


def _masks(view: ContentView) -> dict[str, Any]:
    boxes = _boxes(view)
    return {
        task: json.loads(as_coco(encode(outlined(boxes.get(task, []), view.height, view.width))))
        for task in TASKS
    }
