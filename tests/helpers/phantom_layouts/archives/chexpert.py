"""CheXpert: JPG files and three tables of labels, no reports."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import Layout, Row

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
        *(path, "Female" if study.female else "Male", study.age),
        *("Frontal" if view.frontal else "Lateral", view.stated if view.frontal else ""),
        *(f"{labels[name]:.1f}" if name in labels else "" for name in CHEXPERT_ORDER),
    ]
