"""Write a phantom as a MIMIC-CXR tree, in parallel, all or nothing."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from medclip_debias.data.parallel import end_opencv_threads
from medclip_debias.data.phantom.files import write_dicom, write_jpg
from medclip_debias.data.phantom.findings import Box
from medclip_debias.data.phantom.language import Sentence
from medclip_debias.data.phantom.settings import PhantomSettings
from medclip_debias.data.phantom.study import Study, View, phrases, plan_study, render_view
from medclip_debias.data.phantom.tables import write_tables
from medclip_debias.errors import UserError

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Written:
    """A study whose files are on disk: what the tables need to know of it."""

    study: Study
    boxes: dict[str, dict[int, tuple[Box, ...]]]  # by dicom_id, then class
    phrases: dict[str, list[tuple[int, Sentence]]]


def generate(
    out: Path,
    settings: PhantomSettings,
    progress: Progress | None = None,
    workers: int | None = None,
) -> dict[str, int]:
    """Generate a phantom in the folder ``out``; the same settings give the same bytes.

    Args:
        out: folder to make; it may exist only when it is empty.
        settings: the dials.
        progress: called with (studies done, all studies).
        workers: processes; the number of CPUs by default. It changes nothing but the time.

    Returns:
        Counts: patients, studies, images, sentences, phrases, boxes.

    Raises:
        UserError: ``out`` exists and is not empty, or cannot be written.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out}: exists already and is not an empty folder; choose another one.")
    partial = out.parent / f".{out.name}.partial-{os.getpid()}"
    try:
        partial.mkdir(parents=True)
        counts = _generate(partial, settings, progress, workers or os.cpu_count() or 1)
        if out.exists():
            out.rmdir()
        partial.replace(out)
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror}).") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return counts


def _generate(
    root: Path, settings: PhantomSettings, progress: Progress | None, workers: int
) -> dict[str, int]:
    tasks = [(split, i) for split, n in settings.counts().items() for i in range(n)]
    size = max(1, min(32, len(tasks) // (4 * workers)))
    chunks = [tasks[i : i + size] for i in range(0, len(tasks), size)]
    written: list[Written] = []
    for batch in _map(root, settings, chunks, min(workers, len(chunks))):
        written += batch
        if progress is not None:
            progress(len(written), len(tasks))
    return write_tables(root, settings, written)


def _map(
    root: Path, settings: PhantomSettings, chunks: list[list[tuple[str, int]]], workers: int
) -> Iterator[list[Written]]:
    if workers == 1:
        for chunk in chunks:
            yield _write_studies(root, settings, chunk)
        return
    # Forked workers start at once and need no importable main module (notebooks, pipes).
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("fork" if "fork" in methods else None)
    end_opencv_threads()
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_one_thread) as pool:
        futures = [pool.submit(_write_studies, root, settings, chunk) for chunk in chunks]
        try:
            for future in futures:
                yield future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _one_thread() -> None:
    import cv2

    cv2.setNumThreads(0)


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
