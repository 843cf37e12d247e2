"""PadChest: 16-bit PNG files in numbered folders, one table with lists in its cells.

The reports are the phantom's, in English and not stemmed, without headings as PadChest's are.
"""

from __future__ import annotations

from pathlib import Path

from medclip_debias.phantom.catalogue import CLASSES, INDEX
from medclip_debias.phantom.tables import write_csv
from phantom_layouts.content import Content, ContentStudy, ContentView
from phantom_layouts.defects import Defects
from phantom_layouts.layout import Layout, id_in_split
from phantom_layouts.rasters import Pixels, write_deep_png

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
    source_kind = "padchest"
    lossless = True
    sections = ("findings", "impression")

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"{study.place % 3}/{self.image_id(study, view)}.png"

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        number = int(view.key.replace("-", "")[:15], 16)
        return f"216840111366964{number}_00-{study.place:03d}-{view.number:03d}"

    def study_id(self, study: ContentStudy) -> str:
        return f"2168401113669640{study.study.study_id}"

    def patient_id(self, study: ContentStudy) -> str:
        return id_in_split(lambda n: f"93{study.patient:06d}{n:04d}", study.split)

    def write_image(
        self, path: Path, pixels: Pixels, study: ContentStudy, view: ContentView
    ) -> None:
        del study, view
        write_deep_png(path, pixels)

    def write_tables(self, root: Path, content: Content, defects: Defects) -> None:
        held = list(content.views())
        rows = [self._row(number, *item) for number, item in enumerate(held)]
        owner = [study.place for study, _ in held]
        places = list(range(len(held)))
        self.missing_images(root, content, defects)
        self.truncated_images(root, content, defects)

        def note(kind: str, at: int, step: str) -> None:
            defects.add(kind, TABLE, f"row {at + 2}", "funnel", step)

        found = [at for at in places if labels_of(held[at][0]) != ["normal"]]
        for at in defects.choose(found, owner.__getitem__):
            first, *others = labels_of(held[at][0])
            rows[at][_LABELS] = repr([f" {first}", *others])
            note("stray_blank", at, "label has no blank before or behind it (read without)")
        for at in defects.choose(found, owner.__getitem__):
            first, *others = labels_of(held[at][0])
            rows[at][_LABELS] = repr([first, *others, first])
            note("label_twice", at, "label is named once in its row (others count once)")
        for at in defects.choose(found, owner.__getitem__):
            rows[at][_LABELS] = rows[at][_LABELS].rstrip("]")
            note("list_cut", at, f"cell 'Labels' of {TABLE} is a list")
        firsts = [at for at in places if held[at][1].number == 1]
        for at in defects.choose(firsts, owner.__getitem__):
            rows[at][_SENTENCES] = "[['normal'"
            step = f"cell 'LabelsLocalizationsBySentence' of {TABLE} is a list"
            note("sentences_cut", at, step)
        readable = {(s.place, v.number) for s, v in self.readable(content)}
        frontal = [at for at in places if (owner[at], held[at][1].number) in readable]
        for at in defects.choose(frontal, owner.__getitem__):
            rows[at][_PROJECTION] = "EXCLUDE"
            note("excluded", at, "view is frontal")
        for at in defects.choose(places, owner.__getitem__):
            rows.append(rows[at])
            note("row_twice", len(rows) - 1, f"row of {TABLE} is no repeat")
        for at in defects.choose(places, owner.__getitem__):
            rows.append([rows[at][0], "", *rows[at][2:]])
            note("no_image", len(rows) - 1, f"row of {TABLE} names an image")
        write_csv(root / TABLE, COLUMNS, rows)

    def _row(self, number: int, study: ContentStudy, view: ContentView) -> list[str]:
        labels = labels_of(study)
        places = places_of(study)
        sentences = [[label, *places.get(label, [])] for label in labels]
        year = int(study.study.date[:4])
        return [
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
