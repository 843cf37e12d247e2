"""SIIM-ACR Pneumothorax: DICOM files in folders of their ids, a row of run lengths a mask."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from medclip_debias.data.masks import encode, runs_of
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.tables import write_csv
from phantom_layouts.content import Content, ContentStudy, ContentView
from phantom_layouts.defects import Defects
from phantom_layouts.layout import Layout, id_in_split
from phantom_layouts.outlines import apart, named_boxes, outlined
from phantom_layouts.rasters import Pixels, write_grey_dicom

TABLE, FOLDER = "train-rle.csv", "dicom-images-train"
FINDING = "Pneumothorax"
_ROOT = "1.2.826.0.1.3680043.10.511.3"


class Siim(Layout):
    """Patients are known from the DICOM headers alone."""

    kind = "siim"
    title = "SIIM-ACR Pneumothorax"
    source_kind = "siim"
    lossless = True
    sections = ()

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        place = f"{_ROOT}.{study.place}"
        image = self.image_id(study, view)
        return f"{FOLDER}/{place}/{place}.{view.number}/{image}.dcm" if view.frontal else ""

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return f"{_ROOT}.{study.place}.{view.number}.1"

    def study_id(self, study: ContentStudy) -> str:
        return self.image_id(study, next(view for view in study.views if view.frontal))

    def owner_ids(self, study: ContentStudy, view: ContentView) -> tuple[str, str]:
        return self.image_id(study, view), self.patient_id(study)

    def patient_id(self, study: ContentStudy) -> str:
        return id_in_split(lambda n: f"{study.patient:06d}-{n:03d}", study.split)

    def boxes(self, studies: Sequence[ContentStudy]) -> dict[str, list[Box]]:
        return self.boxes_by_view(studies, _boxes)

    def write_image(
        self, path: Path, pixels: Pixels, study: ContentStudy, view: ContentView
    ) -> None:
        write_grey_dicom(path, pixels, study, view, PatientID=self.patient_id(study))

    def write_tables(self, root: Path, content: Content, defects: Defects) -> None:
        rows: list[list[str]] = []
        owners: dict[str, int] = {}
        for study, view in content.views():
            if view.frontal:
                image = self.image_id(study, view)
                owners[image] = study.place
                cells = [_cell(box, view) for box in _boxes(view)]
                rows += [[image, f" {cell}"] for cell in cells or ["-1"]]
        self.missing_images(root, content, defects)
        self.truncated_images(root, content, defects)

        def owner(row: list[str]) -> int:
            return owners[row[0]]

        masks = [row for row in rows if row[1] != " -1"]
        for row in defects.choose(masks, owner):
            row[1] += " 99999999 1"
            step = f"mask of {TABLE} can be read and fits its image"
            defects.add("mask_leaves_image", TABLE, row[0], "funnel", step)
        for row in defects.choose(masks, owner):
            rows.append([row[0], " -1"])
            step = "-1 stands alone (else the mask counts)"
            defects.add("mask_and_none", TABLE, row[0], "funnel", step)
        for row in defects.choose(rows, owner):
            rows.append(list(row))
            where = f"row {len(rows) + 1}"
            defects.add("row_twice", TABLE, where, "funnel", f"row of {TABLE} is no repeat")
        for row in defects.choose([row for row in rows if row[1] == " -1"], owner):
            rows.remove(row)
            step = f"file of {FOLDER} has a row in the table"
            defects.add("image_without_row", TABLE, row[0], "funnel", step)
        write_csv(root / TABLE, ["ImageId", " EncodedPixels"], rows)


def _boxes(view: ContentView) -> list[Box]:
    return apart(named_boxes(view, {FINDING: FINDING}).get(FINDING, []))


def _cell(box: Box, view: ContentView) -> str:
    runs = runs_of(encode(outlined([box], view.height, view.width)))
    return " ".join(map(str, runs[: len(runs) // 2 * 2]))
