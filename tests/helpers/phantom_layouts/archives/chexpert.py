"""CheXpert: JPG files and three tables of labels, no reports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from medclip_debias.phantom.tables import write_csv
from phantom_layouts.content import Content, ContentStudy, ContentView
from phantom_layouts.defects import Defects
from phantom_layouts.layout import Layout

CHEXPERT_ORDER = (
    *("No Finding", "Enlarged Cardiomediastinum", "Cardiomegaly", "Lung Opacity", "Lung Lesion"),
    *("Edema", "Consolidation", "Pneumonia", "Atelectasis", "Pneumothorax", "Pleural Effusion"),
    *("Pleural Other", "Fracture", "Support Devices"),
)
"""Columns in the order of CheXpert's tables."""

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
    source_kind = "chexpert"
    lossless = False
    sections = ()

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"{patient_path(study, view)}.jpg"

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return patient_path(study, view).partition("/")[2]

    def study_id(self, study: ContentStudy) -> str:
        return f"{self.patient_id(study)}/study{study.number}"

    def patient_id(self, study: ContentStudy) -> str:
        return f"patient{study.patient:05d}"

    def write_tables(self, root: Path, content: Content, defects: Defects) -> None:
        rows: dict[str, list[list[Any]]] = {name: [] for name in FOLDERS.values()}
        places: list[tuple[str, int]] = []
        owners: dict[tuple[str, int], int] = {}
        for study, view in content.views():
            name = FOLDERS[study.split]
            labels = label_row(study)
            owners[name, len(rows[name])] = study.place
            places.append((name, len(rows[name])))
            rows[name].append(
                [
                    f"CheXpert-v1.0-small/{self.image_file(study, view)}",
                    "Female" if study.female else "Male",
                    study.age,
                    "Frontal" if view.frontal else "Lateral",
                    view.stated if view.frontal else "",
                    *(f"{labels[c]:.1f}" if c in labels else "" for c in CHEXPERT_ORDER),
                ]
            )
        self.missing_images(root, content, defects)
        self.truncated_images(root, content, defects)
        for name, at in defects.choose(places, owners.__getitem__):
            rows[name][at][5] = "2.0"
            step = f"label cell of {name}.csv has a value that the archive defines"
            defects.add("label_value", f"{name}.csv", f"row {at + 2}", "funnel", step)
        for name, at in defects.choose(places, owners.__getitem__):
            rows[name].append(rows[name][at])
            step = f"row of {name}.csv is no repeat"
            defects.add("row_twice", f"{name}.csv", f"row {len(rows[name]) + 1}", "funnel", step)
        header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *CHEXPERT_ORDER]
        for name, its_rows in rows.items():
            write_csv(root / f"{name}.csv", header, its_rows)
