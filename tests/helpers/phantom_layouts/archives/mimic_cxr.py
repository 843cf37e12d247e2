"""MIMIC-CXR with MS-CXR's boxes, the phantom's own layout, and with MS-CXR-T's progressions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from medclip_debias.phantom.catalogue import CLASSES, INDEX
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.tables import write_csv
from medclip_debias.phantom.writer import file_name, write_tree
from phantom_layouts.content import ContentStudy, ContentView, Image, Studies, plan_content
from phantom_layouts.layout import Layout

TABLE = "MS_CXR_T_temporal_image_classification_v1.0.0.csv"
FINDINGS = {
    "consolidation": "pneumonia",
    "edema": "edema",
    "pleural_effusion": "effusion",
    "pneumonia": "pneumonia",
    "pneumothorax": "pneumothorax",
}
"""The archive's five findings, and the phantom's types that they are."""

_SEVERITY = {None: 2, "mild": 1, "small": 1, "severe": 3, "large": 3}
_IDS = ("dicom_id", "previous_dicom_id", "study_id", "previous_study_id", "subject_id")


class MimicCxr(Layout):
    """Streams its studies: they are written as they are planned, whatever their number."""

    kind = "mimic_cxr"
    title = "MIMIC-CXR"
    lossless = False  # 12 bits, and windows: its rows differ from those of 8 bits
    sections = ("report",)

    def generate(self, root: Path, workers: int) -> dict[str, int]:
        return write_tree(root, self.settings, None, workers)

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        return f"{study.study.folder}/{file_name(view.view, self.settings)}"

    def image_id(self, study: ContentStudy, view: ContentView) -> str:
        return view.key

    def study_id(self, study: ContentStudy) -> str:
        return str(study.study.study_id)

    def patient_id(self, study: ContentStudy) -> str:
        return str(study.study.subject_id)

    def boxes_of(self, study: ContentStudy, view: ContentView) -> list[Box]:
        boxed = study.split == "test" and view.stated in ("AP", "PA")
        return [box for boxes in view.boxes.values() for box in boxes] if boxed else []


class MsCxrT(MimicCxr):
    """Pairs are those of one patient's consecutive studies, validation aside."""

    kind = "ms_cxr_t"
    title = "MS-CXR-T beside MIMIC-CXR"
    source_kind = "mimic_cxr"

    def generate(self, root: Path, workers: int) -> dict[str, int]:
        counts = super().generate(root, workers)
        header = [*_IDS]
        for finding in FINDINGS:
            header += [f"{finding}_progression", f"{finding}_label_quality"]
        rows = [self._row(*pair) for pair in _pairs(plan_content(self.settings))]
        write_csv(root / TABLE, header, rows)
        return counts

    def _row(self, before: Image, now: Image) -> list[str]:
        row = [
            self.image_id(*now),
            self.image_id(*before),
            self.study_id(now[0]),
            self.study_id(before[0]),
            self.patient_id(now[0]),
        ]
        for finding in FINDINGS.values():
            state = progression(before[0], now[0], finding)
            row += [state, "one_expert" if state else ""]
        return row


def progression(before: ContentStudy, now: ContentStudy, kind: str) -> str:
    """How a type of finding changed by its severity, ``""`` where neither study shows it."""
    first, second = _severity(before, kind), _severity(now, kind)
    if not first and not second:
        return ""
    return "stable" if first == second else "worsening" if second > first else "improving"


def _severity(study: ContentStudy, kind: str) -> int:
    classes = (CLASSES[INDEX[name]] for name in study.findings)
    return sum(_SEVERITY[c.severity] for c in classes if c.type == kind)


def _pairs(studies: Studies) -> Iterator[tuple[Image, Image]]:
    first = {
        study.place: next(((study, v) for v in study.views if v.stated in ("AP", "PA")), None)
        for study in studies
        if study.split != "validate"
    }
    for study in studies:
        before = first.get(study.previous) if study.previous else None
        now = first.get(study.place)
        if before is not None and now is not None:
            yield before, now
