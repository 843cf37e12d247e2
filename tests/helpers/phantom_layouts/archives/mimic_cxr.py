"""MIMIC-CXR with MS-CXR boxes: the phantom's own layout, 12-bit DICOM or JPG."""

from __future__ import annotations

from pathlib import Path

from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.writer import file_name, write_tree
from phantom_layouts.content import ContentStudy, ContentView
from phantom_layouts.layout import Layout


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
