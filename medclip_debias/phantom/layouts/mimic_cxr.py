"""MIMIC-CXR with MS-CXR boxes: the phantom's own layout, 12-bit DICOM or JPG."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from medclip_debias.data.parallel import ordered
from medclip_debias.phantom.content import (
    Content,
    ContentStudy,
    ContentView,
    plan_content,
)
from medclip_debias.phantom.defects import Defects
from medclip_debias.phantom.files import write_dicom, write_jpg
from medclip_debias.phantom.findings import Box
from medclip_debias.phantom.layout import Layout, Progress, one_thread
from medclip_debias.phantom.settings import PhantomSettings
from medclip_debias.phantom.study import Study, View, phrases, plan_study, render_view
from medclip_debias.phantom.tables import Written, write_mimic_tables


class MimicCxr(Layout):
    """Streams its studies: they are written as they are planned, whatever their number."""

    kind = "mimic_cxr"
    title = "MIMIC-CXR"
    source_kind = "mimic_cxr"
    lossless = False  # 12 bits, and windows: its rows differ from those of 8 bits
    sections = ("report",)

    def generate(
        self, root: Path, settings: PhantomSettings, progress: Progress | None, workers: int
    ) -> dict[str, int]:
        """Write the tree; the bytes are those of the phantom before it had layouts."""
        tasks = [(split, i) for split, n in settings.counts().items() for i in range(n)]
        size = max(1, min(32, len(tasks) // (4 * workers)))
        chunks = [tasks[i : i + size] for i in range(0, len(tasks), size)]
        written: list[Written] = []
        workers = min(workers, len(chunks))
        start = one_thread if workers > 1 else None
        for batch in ordered(partial(_write_studies, root, settings), chunks, workers, start=start):
            written += batch
            if progress is not None:
                progress(len(written), len(tasks))
        counts = write_mimic_tables(root, settings, written)
        defects = Defects(settings.defects, settings.seed)
        content = Content(settings, tuple(plan_content(settings)) if self._plans() else ())
        if settings.defects:
            self.missing_images(root, content, defects)
            self.truncated_images(root, content, defects)
        self.write_tables(root, content, defects)
        return counts | defects.write(root)

    def image_file(self, study: ContentStudy, view: ContentView) -> str:
        """``files/p10/p10000032/s50414267/<dicom_id>.dcm``."""
        return f"{study.study.folder}/{file_name(view.view, self.settings)}"

    def image_id(self, study: ContentStudy, view: ContentView) -> str:  # noqa: ARG002
        """The ``dicom_id``."""
        return view.key

    def study_id(self, study: ContentStudy) -> str:
        """The ``study_id``."""
        return str(study.study.study_id)

    def patient_id(self, study: ContentStudy) -> str:
        """The ``subject_id``."""
        return str(study.study.subject_id)

    def boxes(self, studies: Sequence[ContentStudy]) -> dict[str, list[Box]]:
        """MS-CXR's: those of the frontal test images."""
        return {
            view.key: [box for boxes in view.boxes.values() for box in boxes]
            for study in studies
            for view in study.views
            if study.split == "test" and view.stated in ("AP", "PA")
        }

    def write_tables(self, root: Path, content: Content, defects: Defects) -> None:
        """Do nothing: `generate` writes them from its own stream of studies."""

    def _plans(self) -> bool:
        """Whether the studies are planned once more, for what is written at the end."""
        return bool(self.settings.defects)


def _write_studies(
    root: Path, settings: PhantomSettings, tasks: list[tuple[str, int]]
) -> list[Written]:
    return [_write_study(root, settings, plan_study(settings, *task)) for task in tasks]


def _write_study(root: Path, settings: PhantomSettings, study: Study) -> Written:
    folder = root / study.folder
    folder.mkdir(parents=True)
    folder.with_suffix(".txt").write_text(study.report.text, encoding="utf-8")
    boxes, said = {}, {}
    for view in study.views:
        picture = render_view(settings, study, view)
        path = folder / file_name(view, settings)
        if settings.format == "dicom":
            write_dicom(path, picture.pixels, study, view, settings)
        else:
            write_jpg(path, picture.pixels)
        boxes[view.dicom_id] = picture.boxes
        if study.split == "test" and view.stated in ("AP", "PA"):
            said[view.dicom_id] = phrases(settings, view, picture.boxes)
    return Written(study, boxes, said)


def file_name(view: View, settings: PhantomSettings) -> str:
    """Name of a view's image file."""
    return f"{view.dicom_id}.{'dcm' if settings.format == 'dicom' else 'jpg'}"
