"""View positions that no table holds, from the headers of DICOM files.

Only the header is read, over processes, with a journal: a run that is resumed reads none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from medclip_debias.data.images.headers import view_position
from medclip_debias.data.parallel import chunks, ordered
from medclip_debias.data.prepare.journal import Job, Journal
from medclip_debias.data.records import ImageRecord

_CHUNK = 64

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


def _read(jobs: list[Job]) -> list[dict[str, Any]]:
    return [{"head": head, "view": view_position(path)} for head, path in jobs]
