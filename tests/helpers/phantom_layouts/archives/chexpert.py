"""CheXpert (JPG, labels), CheXpert Plus (DICOM, reports) and CheXlocalize (masks)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from medclip_debias.data.masks import as_coco, encode
from medclip_debias.phantom.findings import Box
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import Layout, Row
from phantom_layouts.outlines import apart, named_boxes, outlined

CHEXPERT_ORDER = (
    *("No Finding", "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion"),
    *("Edema", "Consolidation", "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion"),
    *("Pleural Other", "Fracture", "Support Devices"),
)
"""Columns in the order of CheXpert's tables."""

HEADER = ("Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *CHEXPERT_ORDER)
FOLDERS = {"train": "train", "validate": "valid", "test": "test"}


def patient_path(study: ContentStudy, view: ContentView) -> str:
    """``train/patient00001/study1/view1_frontal``."""
    side = "frontal" if view.frontal else "lateral"
    folder = f"patient{study.patient:05d}/study{study.number}"
    return f"{FOLDERS[study.split]}/{folder}/view{view.number}_{side}"


def label_row(study: ContentStudy) -> dict[str, int]:
    """A labeller's labels for training, people's for validation and test."""
    return study.report_labels if study.split == "train" else study.true_labels


class CheXpert(Layout):
    """The small release: paths begin with its folder, which the root itself is."""

    kind = "chexpert"
    title = "CheXpert"
    lossless = False
    sections: ClassVar[tuple[str, ...]] = ()
    headers: ClassVar = {f"{name}.csv": HEADER for name in FOLDERS.values()}

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"{patient_path(study, view)}.jpg"

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return patient_path(study, view).partition("/")[2]

    def study_id(self, study: ContentStudy) -> str:
        return f"{self.patient_id(study)}/study{study.number}"

    def patient_id(self, study: ContentStudy) -> str:
        return f"patient{study.patient:05d}"

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        path = f"CheXpert-v1.0-small/{self.image_file(study, view)}"
        yield f"{FOLDERS[study.split]}.csv", table_row(path, study, view)


def table_row(path: str, study: ContentStudy, view: ContentView) -> list[Any]:
    """A row of CheXpert's tables."""
    labels = label_row(study)
    return [
        *(path, "Female" if study.study.female else "Male", 60),
        *("Frontal" if view.frontal else "Lateral", view.stated if view.frontal else ""),
        *(f"{labels[name]:.1f}" if name in labels else "" for name in CHEXPERT_ORDER),
    ]


PLUS_TABLE = "df_chexpert_plus_240401.csv"
PLUS_COLUMNS = (
    *("path_to_image", "path_to_dcm", "frontal_lateral", "ap_pa", "deid_patient_id", "report"),
    *("section_findings", "section_impression", "split"),
)
PLUS_LABELS = "report_fixed.json"


class CheXpertPlus(CheXpert):
    """The archive has no test split of its own; here the column ``split`` says test, too."""

    kind = "chexpert_plus"
    title = "CheXpert Plus"
    lossless = True
    sections = ("findings", "impression")
    headers: ClassVar = {PLUS_TABLE: PLUS_COLUMNS, PLUS_LABELS: ()}

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"DICOM/{patient_path(study, view)}.dcm"

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        path = patient_path(study, view)
        yield (
            PLUS_TABLE,
            [
                *(f"{path}.jpg", f"{path}.dcm", "Frontal" if view.frontal else "Lateral"),
                *(view.stated if view.frontal else "", self.patient_id(study), study.report),
                *map(study.section, ("findings", "impression")),
                {"validate": "valid"}.get(study.split, study.split),
            ],
        )
        labels = label_row(study)
        values = {name: float(labels[name]) if name in labels else None for name in CHEXPERT_ORDER}
        yield PLUS_LABELS, {"path_to_image": f"{path}.jpg", **values}

    def write_file(self, path: Path, rows: Sequence[Any]) -> None:
        if path.name == PLUS_TABLE:
            super().write_file(path, rows)
            return
        path.write_text("\n".join([*map(json.dumps, rows), ""]), encoding="utf-8")


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
