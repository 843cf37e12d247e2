"""RSNA Pneumonia: DICOM files, a row a box, three classes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_OID, uuid5

from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.tables import write_csv
from phantom_layouts.content import Content, ContentStudy, ContentView
from phantom_layouts.defects import Defects
from phantom_layouts.layout import Layout, id_in_split
from phantom_layouts.outlines import named_boxes
from phantom_layouts.rasters import Pixels, write_grey_dicom

LABELS, CLASSES = "stage_2_train_labels.csv", "stage_2_detailed_class_info.csv"
FINDING = "Pneumonia"


class Rsna(Layout):
    """An image is a patient of its own, as in the archive without its mapping."""

    kind = "rsna"
    title = "RSNA Pneumonia"
    source_kind = "rsna"
    lossless = True
    sections = ()

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        image = self.image_id(study, view)
        return f"stage_2_train_images/{image}.dcm" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return id_in_split(lambda n: str(uuid5(NAMESPACE_OID, f"{view.key} {n}")), study.split)

    def study_id(self, study: ContentStudy) -> str:
        return self.image_id(study, next(view for view in study.views if view.frontal))

    def patient_id(self, study: ContentStudy) -> str:
        return self.study_id(study)

    def owner_ids(self, study: ContentStudy, view: ContentView) -> tuple[str, str]:
        return self.image_id(study, view), self.image_id(study, view)

    def boxes(self, studies: Sequence[ContentStudy]) -> dict[str, list[Box]]:
        return self.boxes_by_view(studies, _boxes)

    def write_image(
        self, path: Path, pixels: Pixels, study: ContentStudy, view: ContentView
    ) -> None:
        write_grey_dicom(path, pixels, study, view, PatientID=self.image_id(study, view))

    def write_tables(self, root: Path, content: Content, defects: Defects) -> None:
        rows: list[list[Any]] = []
        classes: list[list[str]] = []
        owners: dict[str, int] = {}
        for study, view in content.views():
            if not view.frontal:
                continue
            image, boxes = self.image_id(study, view), _boxes(view)
            owners[image] = study.place
            own = [[image, *box, 1] for box in boxes] or [[image, "", "", "", "", 0]]
            rows += own
            normal = bool(study.true_labels["No Finding"])
            name = "Normal" if normal else "No Lung Opacity / Not Normal"
            classes += [[image, "Lung Opacity" if boxes else name] for _ in own]
        self.missing_images(root, content, defects)
        self.truncated_images(root, content, defects)
        self._defects(rows, classes, owners, defects)
        write_csv(root / LABELS, ["patientId", "x", "y", "width", "height", "Target"], rows)
        write_csv(root / CLASSES, ["patientId", "class"], classes)

    def _defects(
        self,
        rows: list[list[Any]],
        classes: list[list[str]],
        owners: dict[str, int],
        defects: Defects,
    ) -> None:
        def owner(row: Sequence[Any]) -> int:
            return owners[row[0]]

        fits = f"row of {LABELS} has a box where its label is 1, and none where it is 0"
        for row in defects.choose([r for r in rows if r[-1] == 0], owner):
            row[1:5] = [1.0, 2.0, 3.0, 4.0]
            defects.add("box_without_target", LABELS, row[0], "funnel", fits)
        for row in defects.choose([r for r in rows if r[-1] == 1], owner):
            row[1:5] = [""] * 4
            defects.add("target_without_box", LABELS, row[0], "funnel", fits)
        for row in defects.choose([r for r in rows if r[-1] == 1], owner):
            rows.append(list(row))
            step = f"row of {LABELS} is no repeat"
            defects.add("box_twice", LABELS, f"row {len(rows) + 1}", "funnel", step)
        for row in defects.choose(rows, owner):
            rows.append([row[0], "", "", "", "", "x"])
            step = f"label cell of {LABELS} has a value that the archive defines"
            defects.add("no_target", LABELS, f"row {len(rows) + 1}", "funnel", step)
        for pair in defects.choose([c for c in classes if c[1] == "Normal"], owner):
            classes.append([pair[0], "No Lung Opacity / Not Normal"])
            where = f"row {len(classes) + 1}"
            defects.add("two_classes", CLASSES, where, "funnel", "image has one class")


def _boxes(view: ContentView) -> list[Box]:
    return named_boxes(view, {FINDING: FINDING}).get(FINDING, [])
