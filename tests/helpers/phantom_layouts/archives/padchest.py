"""PadChest: 16-bit PNG files in numbered folders, one table with lists in its cells.

The reports are the phantom's, in English and not stemmed, without headings as PadChest's are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from medclip_debias.phantom.catalogue import CLASSES, INDEX
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.defects import REPEAT, Kind, Row, again, setting
from phantom_layouts.layout import Layout, id_in_split

TABLE = "PADCHEST_chest_x_ray_images_labels_160K_01.02.19.csv"
COLUMNS = (
    *("", "ImageID", "ImageDir", "StudyDate_DICOM", "StudyID", "PatientID", "PatientBirth"),
    *("PatientSex_DICOM", "Projection", "MethodProjection", "Pediatric", "ReportID", "Report"),
    *("MethodLabel", "Labels", "Localizations", "LabelsLocalizationsBySentence"),
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

_LABELS, _PROJECTION, _SENTENCES = (
    COLUMNS.index(name) for name in ("Labels", "Projection", "LabelsLocalizationsBySentence")
)


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

    def kinds(self, rows: list[Row]) -> Iterable[Kind]:
        def labels(form: Callable[[str, list[str]], list[str]]) -> Callable[[Row], None]:
            def change(row: Row) -> None:
                first, *others = labels_of(row.study)
                row.cells[_LABELS] = repr(form(first, others))

            return change

        def cut(row: Row) -> None:
            row.cells[_LABELS] = row.cells[_LABELS].rstrip("]")

        def found(row: Row) -> bool:
            return labels_of(row.study) != ["normal"]

        def readable(row: Row) -> bool:
            return self.readable(row.study, row.view)

        plain = "label has no blank before or behind it (read without)"
        yield Kind("stray_blank", plain, labels(lambda one, more: [f" {one}", *more]), found)
        once = "label is named once in its row (others count once)"
        yield Kind("label_twice", once, labels(lambda one, more: [one, *more, one]), found)
        yield Kind("list_cut", "cell 'Labels' of {file} is a list", cut, found)
        is_list = "cell 'LabelsLocalizationsBySentence' of {file} is a list"
        first = setting(_SENTENCES, "[['normal'")
        yield Kind("sentences_cut", is_list, first, lambda row: row.view.number == 1)
        excluded = setting(_PROJECTION, "EXCLUDE")
        yield Kind("excluded", "view is frontal", excluded, readable)
        yield Kind("row_twice", REPEAT, again)
        named = "row of {file} names an image"
        yield Kind("no_image", named, lambda row: [row.cells[0], "", *row.cells[2:]])

    def rows(self, number: int, study: ContentStudy, view: ContentView) -> Iterable[Row]:
        labels = labels_of(study)
        places = places_of(study)
        sentences = [[label, *places.get(label, [])] for label in labels]
        year = int(study.study.date[:4])
        cells = [
            str(number),
            f"{self.image_id(study, view)}.png",
            str(study.place % 3),
            study.study.date,
            self.study_id(study),
            self.patient_id(study),
            f"{year - study.age}.0",
            "F" if study.female else "M",
            _projection(study, view),
            "Manual review of DICOM fields",
            "No",
            str(4_000_000 + study.place),
            " ".join(filter(None, map(study.section, ("findings", "impression")))),
            "Physician" if study.split == "test" else "RNN_model",
            repr(labels),
            repr(sorted({place for own in places.values() for place in own})),
            repr(sentences),
        ]
        yield Row(TABLE, study, view, cells)


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
