"""Image files to the rows of ``images.bin``, over processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medclip_debias.config import PrepareSettings
from medclip_debias.data.images import prepare_image, read_image
from medclip_debias.data.parallel import chunks, ordered
from medclip_debias.errors import UserError

Size = tuple[int, int]


def write_rows(
    target: Path,
    paths: Sequence[Path],
    settings: PrepareSettings,
    workers: int,
    advance: Callable[[int], None],
) -> tuple[dict[int, Size], dict[int, str]]:
    """Write every readable image to ``target``, in order and without gaps.

    Args:
        target: file to make; row ``r`` is ``size x size`` bytes.
        paths: image files.
        settings: how a file becomes a row.
        workers: processes.
        advance: called with the number of files just done.

    Returns:
        Height and width of each image that was written, and the reason for each that was not,
        both by position in ``paths``.
    """
    _reserve(target, len(paths) * settings.size**2)
    sizes: dict[int, Size] = {}
    reasons: dict[int, str] = {}
    for results in ordered(
        _write_rows,
        chunks(enumerate(paths), 8),
        workers,
        start=_start_worker,
        start_args=(target, len(paths), settings),
    ):
        for row, size, reason in results:
            if size is None:
                reasons[row] = reason
            else:
                sizes[row] = size
        advance(len(results))
    _close_worker()
    _compact(target, sorted(sizes), len(paths), settings.size)
    return sizes, reasons


_rows: Any = None
_settings: PrepareSettings | None = None


def _start_worker(path: Path, count: int, settings: PrepareSettings) -> None:
    global _rows, _settings
    import cv2

    cv2.setNumThreads(1)  # the processes are the parallel part
    shape = (count, settings.size, settings.size)
    _rows = np.memmap(path, dtype=np.uint8, mode="r+", shape=shape)
    _settings = settings


def _close_worker() -> None:
    global _rows
    _rows = None


def _write_rows(
    jobs: list[tuple[int, Path]],
) -> list[tuple[int, tuple[int, int] | None, str]]:
    """Write each readable image to its row; return its height and width, or the reason."""
    assert _settings is not None
    results: list[tuple[int, tuple[int, int] | None, str]] = []
    for row, path in jobs:
        try:
            array = read_image(path)
            _rows[row] = prepare_image(array, _settings)
        except UserError as error:
            reason = str(error)
            results.append((row, None, reason if str(path) in reason else f"{path}: {reason}"))
        else:
            results.append((row, (array.shape[0], array.shape[1]), ""))
    return results


def _reserve(path: Path, size: int) -> None:
    """Make a file of ``size`` bytes that the disk really has room for.

    Writing through a memory map to a full disk would kill the process instead of failing.
    """
    with path.open("wb") as file:
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)


def _compact(path: Path, rows: list[int], count: int, size: int) -> None:
    """Close the gaps that rejected images left, in place."""
    if len(rows) == count:
        return
    if rows:
        data = np.memmap(path, dtype=np.uint8, mode="r+", shape=(count, size, size))
        for target, row in enumerate(rows):
            if target != row:
                data[target] = data[row]
        data.flush()
        del data
    os.truncate(path, len(rows) * size**2)
