"""How fast the disks of a run read and write."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from medclip_debias.doctor.findings import OK, STOPS, Finding

_READS, _WRITE = 256, 64 * 2**20


def read_speed(pixels: Path, row: int, rows: int) -> Finding:
    """Random rows of ``images.bin``, one after the other, from the disk where that is possible."""
    count = min(_READS, rows)
    order = np.random.default_rng(0).permutation(rows)[:count]
    handle = os.open(pixels, os.O_RDONLY)
    try:
        # Pages that are in memory would tell nothing about the disk.
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        began = time.perf_counter()
        for place in order:
            os.pread(handle, row, int(place) * row)
        seconds = time.perf_counter() - began
    finally:
        os.close(handle)
    speed = count / seconds
    text = f"{speed:.0f} images a second by one reader, {speed * row / 2**20:.0f} MiB/s"
    return Finding("disk, prepared set", OK, text, numbers={"images_per_second": speed})


def write_speed(out: Path) -> Finding:
    """Write and sync a file beside the run's folder."""
    folder = existing(out)
    block = os.urandom(2**20)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:  # without a name: nothing can be left
            began = time.perf_counter()
            for _ in range(_WRITE // len(block)):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            speed = _WRITE / (time.perf_counter() - began)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return Finding(
            "disk, run folder",
            STOPS,
            f"{folder} cannot be written ({reason})",
            "give another 'out', or mend its permissions or free space",
        )
    text = f"{speed / 2**20:.0f} MiB/s, synced"
    return Finding("disk, run folder", OK, text, numbers={"bytes_per_second": speed})


def existing(folder: Path) -> Path:
    """``folder``, or the nearest folder above it that exists."""
    folder = folder.absolute()
    while not folder.is_dir():
        folder = folder.parent
    return folder
