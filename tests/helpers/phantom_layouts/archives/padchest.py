"""PadChest: 16-bit PNG files in numbered folders, one table with lists in its cells.

The reports are the phantom's, in English and not stemmed, without headings as PadChest's are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from medclip_debias.phantom.catalogue import CLASSES, INDEX
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import Layout, Row, id_in_split

TABLE = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
COLUMNS = (
    *("", "ImageID", "ImageDir", "StudyID", "PatientID", "Projection", "Pediatric", "Report"),
    *("MethodLabel", "Labels", "LabelsLocalizationsBySentence"),
)
LABELS = {
    "atelectasis": "laminar atelectasis",
    "cardiomegaly": "cardiomegaly",
    "edema": "pulmonary edema",
    "effusion": "pleural effusion",
    "hernia": "hiatal hernia",
    "line": "central venous catheter",
    "nodule": "nodule",
    "pacemaker": "pacemaker",
    "pneumonia": "pneumonia",
    "pneumothorax": "pneumothorax",
    "scoliosis": "scoliosis",
    "tube": "endotracheal tube",
}
"""PadChest's label of each type of finding."""


def labels_of(study: ContentStudy) -> list[str]:
    """PadChest's labels of what a study shows, each once; ``normal`` for nothing."""
    types = (CLASSES[INDEX[name]].type for name in study.findings)
    return list(dict.fromkeys(LABELS[kind] for kind in types)) or ["normal"]


class PadChest(Layout):
    """Three folders of images; lateral radiographs are there, as ``L``."""

    kind = "padchest"
    title = "PadChest"
    deep = True
    headers: ClassVar = {TABLE: COLUMNS}

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"{study.place % 3}/{self.image_id(study, view)}.png"

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        number = int(view.key.replace("-", "")[:15], 16)
        return f"216840111366964{number}_00-{study.place:03d}-{view.number:03d}"

    def study_id(self, study: ContentStudy) -> str:
        return f"2168401113669640{study.study.study_id}"

    def patient_id(self, study: ContentStudy) -> str:
        return id_in_split(lambda n: f"93{study.patient:06d}{n:04d}", study.split)

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        labels, places = labels_of(study), places_of(study)
        yield (
            TABLE,
            [
                str(number),
                f"{self.image_id(study, view)}.png",
                str(study.place % 3),
                self.study_id(study),
                self.patient_id(study),
                _projection(study, view),
                "No",
                " ".join(filter(None, map(study.section, ("findings", "impression")))),
                "Physician" if study.split == "test" else "RNN_model",
                repr(labels),
                repr([[label, *places.get(label, [])] for label in labels]),
            ],
        )


def places_of(study: ContentStudy) -> dict[str, list[str]]:
    """Places of each label as ``loc left``."""
    found: dict[str, list[str]] = {}
    for name in study.findings:
        seen = CLASSES[INDEX[name]]
        for word in filter(None, (seen.side, seen.zone)):
            own = found.setdefault(LABELS[seen.type], [])
            if f"loc {word}" not in own:
                own.append(f"loc {word}")
    return found


def _projection(study: ContentStudy, view: ContentView) -> str:
    if view.stated == "AP" and study.place % 2:
        return "AP_horizontal"
    return {"LATERAL": "L"}.get(view.stated, view.stated)
