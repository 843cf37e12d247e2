"""Image files to rows of pixels, a chunk at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from medclip_debias.config import PrepareSettings
from medclip_debias.data.images import prepare_image, read_radiograph
from medclip_debias.data.layout import pixel_hash
from medclip_debias.data.prepare.chunks import Entry, Job
from medclip_debias.errors import UserError, without_patients

_CHUNK_BYTES = 8 << 20
_CHUNK_IMAGES = 32


class KnownRow(NamedTuple):
    """A row that an earlier set has of a file that has not changed.

    ``row`` is its number there, ``hash`` that of its pixels, ``mended`` what was mended when the
    image of ``height`` and ``width`` was read.
    """

    row: int
    height: int
    width: int
    mended: str
    hash: str


def images_of_a_chunk(size: int) -> int:
    """Return how many images of ``size`` pixels a side make a chunk."""
    return max(1, min(_CHUNK_IMAGES, _CHUNK_BYTES // size**2))


def read_rows(
    settings: PrepareSettings, previous: Path | None, jobs: list[Job]
) -> tuple[list[Entry], bytes]:
    """Read the images of a chunk, or copy the rows that an earlier set has of them.

    A job has the file and its `KnownRow` in ``previous``, the ``images.bin`` of that set.
    An entry has ``height``, ``width`` and ``hash`` of the pixels and what was ``mended``, if
    anything, or the ``reason`` why there is no row; ``damaged`` says that the earlier set's row
    was not what was prepared, and was read again.
    """
    import cv2

    cv2.setNumThreads(1)  # the processes are the parallel part
    results = [_read_row(settings, previous, *job) for job in jobs]
    return [entry for entry, _ in results], b"".join(pixels for _, pixels in results)


def _read_row(
    settings: PrepareSettings,
    previous: Path | None,
    head: Any,
    origin: tuple[Path, KnownRow | None],
) -> tuple[Entry, bytes]:
    entry: Entry = {"head": head}
    path, known = origin
    if previous is not None and known is not None:
        with previous.open("rb") as file:
            file.seek(known.row * settings.size**2)
            pixels = file.read(settings.size**2)
        if pixel_hash(pixels) == known.hash:
            return entry | _about(pixels, (known.height, known.width), known.mended), pixels
        entry["damaged"] = True
    try:
        image = read_radiograph(path, settings.window)
        pixels = prepare_image(image, settings).tobytes()
    except UserError as error:
        reason, place = str(error), without_patients(str(path))
        return entry | {"reason": reason if place in reason else f"{place}: {reason}"}, b""
    return entry | _about(pixels, image.shape, image.mended), pixels


def _about(pixels: bytes, shape: tuple[int, int], mended: str) -> Entry:
    about = {"height": shape[0], "width": shape[1], "hash": pixel_hash(pixels)}
    return about | {"mended": mended} if mended else about
