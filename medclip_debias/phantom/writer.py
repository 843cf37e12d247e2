"""Write a phantom as a MIMIC-CXR tree, all or nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from medclip_debias.data.executor import map_pieces
from medclip_debias.errors import UserError
from medclip_debias.files import atomic_folder
from medclip_debias.phantom.files import write_dicom, write_jpg
from medclip_debias.phantom.settings import PhantomSettings
from medclip_debias.phantom.study import Study, View, phrases, plan_study, render_view
from medclip_debias.phantom.tables import Written, write_mimic_tables

Progress = Callable[[int, int], None]


def generate(
    out: Path,
    settings: PhantomSettings,
    progress: Progress | None = None,
    workers: int | None = None,
) -> dict[str, int]:
    """Generate a phantom in the folder ``out``; the same settings give the same bytes.

    Args:
        out: folder to make; it may exist only when it is empty.
        settings: of the phantom.
        progress: called with (studies done, all studies).
        workers: processes; the number of CPUs by default. It changes nothing but the time.

    Returns:
        Counts: patients, studies, images, sentences, phrases and boxes.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists already and is not an empty folder; choose another one.")
    try:
        with atomic_folder(out) as unfinished:
            return write_tree(unfinished, settings, progress, workers or os.cpu_count() or 1)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}).") from error


def write_tree(
    root: Path, settings: PhantomSettings, progress: Progress | None, workers: int
) -> dict[str, int]:
    """Write the tree into an empty folder; studies are written as they are planned."""
    tasks = [(split, i) for split, n in settings.counts().items() for i in range(n)]
    size = max(1, min(32, len(tasks) // (4 * workers)))
    chunks = [tasks[i : i + size] for i in range(0, len(tasks), size)]
    written: list[Written] = []
    workers = min(workers, len(chunks))
    start = one_thread if workers > 1 else None
    for batch in map_pieces(partial(_write_studies, root, settings), chunks, workers, start=start):
        written += batch
        if progress is not None:
            progress(len(written), len(tasks))
    return write_mimic_tables(root, settings, written)


def one_thread() -> None:
    """Leave opencv one thread; called in each process of several."""
    import cv2

    cv2.setNumThreads(0)


def file_name(view: View, settings: PhantomSettings) -> str:
    """Name of a view's image file."""
    return f"{view.dicom_id}.{'dcm' if settings.format == 'dicom' else 'jpg'}"


def _write_studies(
    root: Path, settings: PhantomSettings, tasks: list[tuple[str, int]]
) -> list[Written]:
    return [_write_study(root, settings, plan_study(settings, *task)) for task in tasks]


def _write_study(root: Path, settings: PhantomSettings, study: Study) -> Written:
    folder = root / study.folder
    folder.mkdir(parents=True)
    folder.with_suffix(".txt").write_text(study.report.text, encoding="utf-8")
    boxes, boxed_phrases = {}, {}
    for view in study.views:
        picture = render_view(settings, study, view)
        path = folder / file_name(view, settings)
        if settings.format == "dicom":
            write_dicom(path, picture.pixels, study, view, settings)
        else:
            write_jpg(path, picture.pixels)
        boxes[view.dicom_id] = picture.boxes
        if study.split == "test" and view.stated in ("AP", "PA"):
            boxed_phrases[view.dicom_id] = phrases(settings, view, picture.boxes)
    return Written(study, boxes, boxed_phrases)
