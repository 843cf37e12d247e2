"""VinDr-CXR: frontal DICOM files, three readers' labels and boxes in train, a consensus in test.

The second reader's boxes are narrower than the first one's; the third reader overlooks the findings
of every fifth study, and sees calcification, which the phantom never has, in every seventh.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medclip_debias.phantom.catalogue import CLASSES, INDEX
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.tables import write_csv
from phantom_layouts.content import Content, ContentStudy, ContentView
from phantom_layouts.defects import Defects
from phantom_layouts.layout import Layout, id_in_split

FINDINGS = (
    *("Aortic enlargement", "Atelectasis", "Calcification", "Cardiomegaly", "Clavicle fracture"),
    *("Consolidation", "Edema", "Emphysema", "Enlarged PA", "ILD", "Infiltration"),
    *("Lung Opacity", "Lung cavity", "Lung cyst", "Mediastinal shift", "Nodule/Mass"),
    *("Pleural effusion", "Pleural thickening", "Pneumothorax", "Pulmonary fibrosis"),
    *("Rib fracture", "Other lesion", "COPD", "Lung tumor", "Pneumonia", "Tuberculosis"),
    *("Other diseases", "No finding"),
)
"""Columns of the label tables in the archive's order; the test table says Other disease."""

OF_TYPE = {
    "atelectasis": "Atelectasis",
    "cardiomegaly": "Cardiomegaly",
    "edema": "Edema",
    "effusion": "Pleural effusion",
    "hernia": "Other lesion",
    "nodule": "Nodule/Mass",
    "pneumonia": "Consolidation",
    "pneumothorax": "Pneumothorax",
    "scoliosis": "Other lesion",
}
"""The archive's finding of each type; devices are none."""

_READERS = 3
_CORNERS = ("x_min", "y_min", "x_max", "y_max")
_STRANGE = "Calcification"


class VindrCxr(Layout):
    """The root holds ``train``, ``test`` and ``annotations``; validation lies in ``train``."""

    kind = "vindr_cxr"
    title = "VinDr-CXR"
    source_kind = "vindr_cxr"
    lossless = True
    sections = ()

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"{_part(study)}/{self.image_id(study, view)}.dicom" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return id_in_split(
            lambda n: hashlib.md5(f"{view.key}/{n}".encode(), usedforsecurity=False).hexdigest(),
            study.split,
        )

    def study_id(self, study: ContentStudy) -> str:
        first = next((view for view in study.views if view.frontal), study.views[0])
        return self.image_id(study, first)

    def patient_id(self, study: ContentStudy) -> str:
        return self.study_id(study)

    def owner_ids(self, study: ContentStudy, view: ContentView) -> tuple[str, str]:
        name = self.image_id(study, view)
        return name, name

    def boxes(self, studies: Sequence[ContentStudy]) -> dict[str, list[Box]]:
        return {
            self.image_id(study, view): [
                box
                for _, own in _readings(study, view)
                for name, boxes in own.items()
                if name != _STRANGE
                for box in boxes
            ]
            for study in studies
            for view in study.views
            if view.frontal
        }

    def write_tables(self, root: Path, content: Content, defects: Defects) -> None:
        held = [(study, view) for study, view in content.views() if view.frontal]
        labels: dict[str, list[list[str]]] = {"train": [], "test": []}
        boxes: dict[str, list[list[str]]] = {"train": [], "test": []}
        places: list[tuple[str, int]] = []
        boxed: list[tuple[str, int]] = []
        owners: dict[tuple[str, str, int], int] = {}
        for study, view in held:
            part, image = _part(study), self.image_id(study, view)
            marked = False
            for number, (reader, own) in enumerate(_readings(study, view)):
                owners["labels", part, len(labels[part])] = study.place
                if not number:  # a defect of an image is one reader's
                    places.append((part, len(labels[part])))
                labels[part].append([image, reader, *_cells(own)])
                for finding, found in (own or {"No finding": [None]}).items():
                    for box in found:
                        owners["boxes", part, len(boxes[part])] = study.place
                        if box is not None and not marked:
                            boxed.append((part, len(boxes[part])))
                            marked = True
                        boxes[part].append([image, reader, finding, *_corners(box)])
        self.missing_images(root, content, defects)
        self.truncated_images(root, content, defects)

        def owner(table: str) -> Any:
            return lambda place: owners[table, *place]

        def note(kind: str, name: str, row: int, step: str) -> None:
            defects.add(kind, name, f"row {row + 2}", "funnel", step)

        for part, at in defects.choose(places, owner("labels")):
            name = f"image_labels_{part}.csv"
            labels[part][at][2] = "2"
            step = f"label cell of {name} has a value that the archive defines"
            note("label_value", f"annotations/{name}", at, step)
        for part, at in defects.choose(places, owner("labels")):
            name = f"image_labels_{part}.csv"
            labels[part].append(labels[part][at])
            note("row_twice", f"annotations/{name}", len(labels[part]) - 1, _repeat(name))
        for part, at in defects.choose(boxed, owner("boxes")):
            name = f"annotations_{part}.csv"
            boxes[part].append(boxes[part][at])
            note("box_twice", f"annotations/{name}", len(boxes[part]) - 1, _repeat(name))
        for part, at in defects.choose(boxed, owner("boxes")):
            name = f"annotations_{part}.csv"
            boxes[part].append(["0" * 32, *boxes[part][at][1:]])
            step = f"box of {name} has its image in the table"
            note("image_unknown", f"annotations/{name}", len(boxes[part]) - 1, step)
        for part in labels:
            _write(root / "annotations", part, labels[part], boxes[part])


def _part(study: ContentStudy) -> str:
    return "test" if study.split == "test" else "train"


def _repeat(name: str) -> str:
    return f"row of {name} is no repeat"


def _readings(study: ContentStudy, view: ContentView) -> list[tuple[str, dict[str, list[Any]]]]:
    true: dict[str, list[Box]] = {}
    for name, own in view.boxes.items():
        finding = OF_TYPE.get(CLASSES[INDEX[name]].type)
        if finding is not None:
            true.setdefault(finding, []).extend(own)
    if study.split == "test":
        return [("consensus", dict(true))]
    narrow = {n: [(x + 0.25, y, w - 0.5, h) for x, y, w, h in own] for n, own in true.items()}
    third = {} if study.place % 5 == 0 else dict(true)
    if study.place % 7 == 0:
        third = third | {_STRANGE: [(1.0, 1.0, 8.0, 8.0)]}
    first = study.place % 14 + 1
    readers = (f"R{(first + n - 1) % 17 + 1}" for n in range(_READERS))
    return list(zip(readers, (true, narrow, third), strict=True))


def _cells(found: dict[str, list[Any]]) -> list[str]:
    marked = set(found) | ({"Pneumonia"} if "Consolidation" in found else set())
    return [str(int(name in (marked or {"No finding"}))) for name in FINDINGS]


def _corners(box: Box | None) -> list[str]:
    if box is None:
        return [""] * 4
    x, y, width, height = box
    return [repr(value) for value in (x, y, x + width, y + height)]


def _write(folder: Path, part: str, labels: list[list[str]], boxes: list[list[str]]) -> None:
    folder.mkdir(exist_ok=True)
    if part == "train":
        names = ["image_id", "rad_id", *FINDINGS]
        write_csv(folder / "image_labels_train.csv", names, labels)
        header = ["image_id", "rad_id", "class_name", *_CORNERS]
        write_csv(folder / "annotations_train.csv", header, boxes)
        return
    spelled = [name.replace("Other diseases", "Other disease") for name in FINDINGS]
    write_csv(folder / "image_labels_test.csv", ["image_id", *spelled], [_drop(r) for r in labels])
    header = ["image_id", "class_name", *_CORNERS]
    write_csv(folder / "annotations_test.csv", header, [_drop(row) for row in boxes])


def _drop(row: list[str]) -> list[str]:
    return [row[0], *row[2:]]
