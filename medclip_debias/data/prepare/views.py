"""View positions that no table holds, from the headers of DICOM files.

Only the header is read, over processes, in chunks: a run that is resumed reads none twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from medclip_debias.data.images.headers import view_position
from medclip_debias.data.prepare.chunks import Chunks, Entry, Job
from medclip_debias.data.records import ImageRecord

_CHUNK = 64

ReadViews = Callable[[list[ImageRecord], Mapping[str, str]], dict[str, str]]
"""From images and their stamps to view positions by image id."""


def read_views(
    images: list[ImageRecord],
    stamps: Mapping[str, str],
    *,
    chunks: Chunks | None = None,
    workers: int = 1,
    cluster: str | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> dict[str, str]:
    """Return the view position of each image by its id, ``""`` where the header has none.

    Args:
        images: DICOM files.
        stamps: size and time of change of each file by image id; another stamp, another reading.
        chunks: where results are kept for a run that is resumed.
        workers: processes.
        cluster: as for `Chunks.make`.
        advance: called with the number of headers just read.
    """
    if chunks is None:
        return {image.image_id: view_position(image.path) for image in images}
    jobs = (([image.image_id, stamps[image.image_id]], image.path) for image in images)
    how: dict[str, Any] = {"workers": workers, "cluster": cluster, "advance": advance}
    names, _ = chunks.make("views", None, jobs, _CHUNK, _read, **how)
    return {entry["head"][0]: entry["view"] for name in names for entry in chunks.entries(name)}


def _read(jobs: list[Job]) -> tuple[list[Entry], None]:
    return [{"head": head, "view": view_position(path)} for head, path in jobs], None
