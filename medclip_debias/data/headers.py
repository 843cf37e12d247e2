"""View positions from DICOM headers, for sources whose tables do not hold them.

Only the header is read, over processes, with a journal: a run that is resumed reads none twice.
"""

from __future__ import annotations

import gzip
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

from medclip_debias.data.dicom import header_start, is_deflated, unpacked_size_fits
from medclip_debias.data.images import MAX_BYTES
from medclip_debias.data.journal import Job, Journal
from medclip_debias.data.parallel import chunks, ordered
from medclip_debias.data.records import ImageRecord

_CHUNK = 64
_LONGEST = 16  # characters of a DICOM code string

ReadViews = Callable[[list[ImageRecord], Mapping[str, str]], dict[str, str]]
"""From images and their stamps to view positions by image id."""


def read_views(
    images: Iterable[ImageRecord],
    stamps: Mapping[str, str],
    *,
    journal: Journal | None = None,
    workers: int = 1,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, str]:
    """Return the view position of each image by its id, ``""`` where the header has none.

    Args:
        images: DICOM files.
        stamps: size and time of change of each file by image id; another stamp, another reading.
        journal: where results are kept for a run that is resumed.
        workers: processes.
        advance: called with the number of headers just read.
    """
    views: dict[str, str] = {}

    def finished(entry: dict[str, Any]) -> None:
        views[entry["head"][0]] = entry["view"]
        advance(1)

    jobs: Iterator[Job] = (([i.image_id, stamps[i.image_id]], i.path) for i in images)
    waiting = jobs if journal is None else journal.unfinished(jobs, finished)
    for entries in ordered(_read, chunks(waiting, _CHUNK), workers):
        if journal is not None:
            journal.append(entries)
        for entry in entries:
            finished(entry)
    return views


def view_position(path: Path) -> str:
    """Return the view position of a DICOM file in capitals, ``""`` where there is none to read.

    A file that cannot be read gives ``""``, too: `prepare` rejects it with its reason, or counts
    it among the blank views.
    """
    # pydicom warns about header values (sometimes quoting them) in files that read well.
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with path.open("rb") as file:
                if path.suffix.lower() == ".gz":
                    return _view(cast(IO[bytes], gzip.GzipFile(fileobj=file)))
                return _view(file)
        # A damaged header surfaces as any of a dozen exception types.
        except Exception:
            return ""


def _view(file: IO[bytes]) -> str:
    import pydicom

    start = header_start(file.read(256))
    if start is None:
        return ""
    if is_deflated(file, start):
        file.seek(0)
        content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES or not unpacked_size_fits(content, start, MAX_BYTES):
            return ""
        file = io.BytesIO(content)
    file.seek(0)
    tags = ["ViewPosition"]
    header = pydicom.dcmread(file, stop_before_pixels=True, specific_tags=tags, force=not start)
    view = str(header.get("ViewPosition") or "").strip().upper()
    return view if len(view) <= _LONGEST else ""


def _read(jobs: list[Job]) -> list[dict[str, Any]]:
    return [{"head": head, "view": view_position(path)} for head, path in jobs]
