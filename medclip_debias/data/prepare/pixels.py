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

    Attributes:
        row: its number there.
        height: of the image, in pixels.
        width: of the image.
        mended: what was mended when it was read.
        hash: of its pixels.
        path: of the file.
    """

    row: int
    height: int
    width: int
    mended: str
    hash: str
    path: Path


def images_of_a_chunk(size: int) -> int:
    """Return how many images of ``size`` pixels a side make a chunk."""
    return max(1, min(_CHUNK_IMAGES, _CHUNK_BYTES // size**2))


_settings: PrepareSettings | None = None
_previous: Path | None = None


def start_worker(settings: PrepareSettings, previous: Path | None) -> None:
    """Prepare a process for `read_rows`.

    Args:
        settings: how a file becomes a row.
        previous: ``images.bin`` of an earlier set with the same settings.
    """
    global _settings, _previous
    import cv2

    cv2.setNumThreads(1)  # the processes are the parallel part
    _settings, _previous = settings, previous


def read_rows(jobs: list[Job]) -> tuple[list[Entry], bytes]:
    """Read the images of a chunk, or copy the rows that an earlier set has of them.

    An entry has ``height``, ``width`` and ``hash`` of the pixels and what was ``mended``, if
    anything, or the ``reason`` why there is no row; ``damaged`` says that the earlier set's row
    was not what was prepared, and was read again.
    """
    results = [_read_row(head, origin) for head, origin in jobs]
    return [entry for entry, _ in results], b"".join(pixels for _, pixels in results)


def _read_row(head: Any, origin: Path | KnownRow) -> tuple[Entry, bytes]:
    assert _settings is not None
    entry: Entry = {"head": head}
    if isinstance(origin, KnownRow):
        assert _previous is not None
        with _previous.open("rb") as file:
            file.seek(origin.row * _settings.size**2)
            pixels = file.read(_settings.size**2)
        if pixel_hash(pixels) == origin.hash:
            return entry | _about(pixels, (origin.height, origin.width), origin.mended), pixels
        entry["damaged"] = True
        origin = origin.path
    try:
        image = read_radiograph(origin, _settings.window)
        pixels = prepare_image(image, _settings).tobytes()
    except UserError as error:
        reason, place = str(error), without_patients(str(origin))
        return entry | {"reason": reason if place in reason else f"{place}: {reason}"}, b""
    return entry | _about(pixels, image.shape, image.mended), pixels


def _about(pixels: bytes, shape: tuple[int, int], mended: str) -> Entry:
    about = {"height": shape[0], "width": shape[1], "hash": pixel_hash(pixels)}
    return about | {"mended": mended} if mended else about
