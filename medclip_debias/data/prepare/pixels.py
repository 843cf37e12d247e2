"""Image files to the rows of ``images.bin``, over processes, with a journal."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path
from typing import Any

from medclip_debias.config import PrepareSettings
from medclip_debias.data.images import prepare_image, read_radiograph
from medclip_debias.data.layout import pixel_hash
from medclip_debias.data.parallel import chunks, ordered
from medclip_debias.data.prepare.journal import Job, Journal
from medclip_debias.errors import UserError, without_patients

_CHUNK_BYTES = 4 << 20
_CHUNK_IMAGES = 16

Result = tuple[bytes | None, dict[str, Any]]
"""Pixels of a row, or ``None`` when the file is unusable, and what the journal says of it."""


def write_rows(
    target: Path,
    jobs: Iterable[Job],
    count: int,
    journal: Journal,
    settings: PrepareSettings,
    workers: int,
    advance: Callable[[int], None],
    previous: Path | None = None,
) -> None:
    """Append every readable image to ``target``, in order and without gaps.

    The journal gets one entry an image: ``height``, ``width`` and ``hash`` of the pixels, what was
    ``mended`` if anything, or the ``reason`` it is not there. What the journal holds already is
    not done again.

    Args:
        target: file to make or to continue; row ``r`` is ``size x size`` bytes.
        jobs: each with the path of an image file, or with height, width, row in ``previous`` and
            what was mended.
        count: number of the jobs.
        journal: where results are kept.
        settings: how a file becomes a row.
        workers: processes.
        advance: called with the number of files just done.
        previous: ``images.bin`` of an earlier set with the same settings.
    """
    size = settings.size**2
    rows = 0

    def finished(entry: dict[str, Any]) -> None:
        nonlocal rows
        rows += "hash" in entry
        advance(1)

    if not target.exists():
        journal.path.unlink(missing_ok=True)
    mode = "r+" if target.exists() else "w+"
    with FileIO(target, mode) as file:
        waiting = journal.unfinished(jobs, finished)
        _reserve(file, count * size)
        file.seek(rows * size)
        step = max(1, min(_CHUNK_IMAGES, _CHUNK_BYTES // size))
        try:
            for results in ordered(
                _read_rows,
                chunks(waiting, step),
                workers,
                start=_start_worker,
                start_args=(settings, previous),
            ):
                # The pixels reach the disk before the journal speaks of them.
                written = [pixels for pixels, _ in results if pixels is not None]
                _write(file, b"".join(written))
                os.fsync(file.fileno())
                journal.append(entry for _, entry in results)
                rows += len(written)
                advance(len(results))
        finally:  # also gives back the room that a run which stops here does not need
            file.truncate(rows * size)


_settings: PrepareSettings | None = None
_previous: Path | None = None


def _start_worker(settings: PrepareSettings, previous: Path | None) -> None:
    global _settings, _previous
    import cv2

    cv2.setNumThreads(1)  # the processes are the parallel part
    _settings, _previous = settings, previous


def _read_rows(jobs: list[Job]) -> list[Result]:
    return [_read_row(head, origin) for head, origin in jobs]


def _read_row(head: Any, origin: Path | tuple[int, int, int, str]) -> Result:
    """Read one image, or copy the row that an earlier run read from the same file."""
    assert _settings is not None
    entry: dict[str, Any] = {"head": head}
    if not isinstance(origin, Path):
        height, width, row, mended = origin
        assert _previous is not None
        with _previous.open("rb") as file:
            file.seek(row * _settings.size**2)
            pixels = file.read(_settings.size**2)
        return pixels, entry | _about(pixels, (height, width), mended)
    try:
        image = read_radiograph(origin, _settings.window)
        pixels = prepare_image(image, _settings).tobytes()
    except UserError as error:
        reason, place = str(error), without_patients(str(origin))
        return None, entry | {"reason": reason if place in reason else f"{place}: {reason}"}
    return pixels, entry | _about(pixels, image.shape, image.mended)


def _about(pixels: bytes, shape: tuple[int, int], mended: str) -> dict[str, Any]:
    """What the journal says of a row that is there."""
    said = {"height": shape[0], "width": shape[1], "hash": pixel_hash(pixels)}
    return said | {"mended": mended} if mended else said


def _write(file: FileIO, content: bytes) -> None:
    rest = memoryview(content)
    while rest:  # a nearly full disk may take only a part
        rest = rest[file.write(rest) :]


def _reserve(file: FileIO, size: int) -> None:
    """Ask the disk for the room of all rows now, not hours later."""
    before = os.fstat(file.fileno()).st_size
    if size <= before or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError:
        file.truncate(before)
        raise
