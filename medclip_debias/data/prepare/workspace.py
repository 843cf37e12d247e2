"""The folder in which a set grows until it is whole: ``OUT.partial``, owned by one run at a time.

It holds a lock, the recipe that the run follows, its chunks, and the set. A run that was killed
leaves it; the next run with the same recipe makes what is missing.
"""

from __future__ import annotations

import errno
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from medclip_debias.data.executor import WorkerKilled
from medclip_debias.errors import UserError
from medclip_debias.files import check_out, exchange, read_json_or_none, take_back, write_json

CHUNKS, PART = "chunks", "part.json"
_LOCK, _SET, _OLD = "lock", "set", "old"
LOCKED = 2.0
"""Seconds in which the lock must be had; workers of a killed run hold it for a moment."""


class Workspace:
    """The folder ``OUT.partial`` of a run; what becomes ``OUT`` grows in its folder ``set``.

    Attributes:
        resumed: an earlier run left chunks here, which this run has not thrown away.
    """

    def __init__(self, folder: Path, part: bool) -> None:
        self.folder = folder
        self.set = folder / _SET
        self.chunks = (self.set if part else folder) / CHUNKS
        self.resumed = self.started

    @property
    def started(self) -> bool:
        """Whether any chunk is there."""
        return any(self.chunks.glob("*.json"))

    def follow(self, recipe: dict[str, Any]) -> str:
        """Keep what a run with the same recipe left here, or start anew; say what was there."""
        path = self.folder / "recipe.json"
        known = read_json_or_none(path)
        if known == recipe and self.set.is_dir():
            return f"{self.folder}: resuming an interrupted run." if self.started else ""
        for left in self.folder.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            elif left.name != _LOCK:
                left.unlink()
        self.set.mkdir()
        self.resumed = False
        write_json(path, recipe)
        if known is None:
            return ""
        return (
            f"{self.folder}: was left by a run with other settings, another source or another"
            " version; starting over."
        )

    def free(self) -> int:
        """Return the bytes that are left on the disk."""
        return shutil.disk_usage(self.folder).free

    def check_room(self, size: int) -> None:
        """Stop before the work starts when the disk cannot hold ``size`` bytes of rows."""
        free = self.free() + sum(path.stat().st_size for path in self.chunks.glob("*.bin"))
        if free < size:
            needed, left = (f"{value / 1e6:,.1f} MB" for value in (size, free))
            raise OSError(errno.ENOSPC, f"its images need {needed}, the disk has {left} left")


@contextmanager
def making(out: Path, overwrite: bool, part: bool = False) -> Iterator[Workspace]:
    """Own ``OUT.partial``, and put its set in the place of ``out`` in the end.

    What goes wrong with the disk is one sentence. The folder is removed when the input is at
    fault, and kept when a run can resume from it or an earlier run left work in it.
    """
    folder = _partial(out)
    remedy = "make room or choose another folder"
    lock = FileLock(folder / _LOCK)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with warnings.catch_warnings(action="ignore"):  # that a disk has no locks
                lock.acquire(timeout=LOCKED)
        except Timeout:
            raise UserError(
                f"{out}: another run is preparing it right now; wait for it or give another folder."
            ) from None
        take_back(out, folder / _OLD)  # a run was killed between the renames of `exchange`
        work = Workspace(folder, part)
        try:
            check_free(out, overwrite)
            yield work
            for path in filter(Path.is_file, work.set.iterdir()):
                with path.open("rb") as file:
                    os.fsync(file.fileno())
            exchange(work.set, out, folder / _OLD)
            shutil.rmtree(folder, ignore_errors=True)
        except WorkerKilled:
            raise
        except (UserError, OSError) as error:
            if isinstance(error, OSError) and work.started:
                remedy += f"; run the same command again to resume, or remove {folder}"
            # A disk that is not mounted looks like a source without images: the work of an
            # earlier run is worth more than a tidy folder.
            elif not work.resumed:
                shutil.rmtree(folder, ignore_errors=True)
            raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError(f"{out}: cannot be written ({reason}); {remedy}.") from error
    finally:
        lock.release(force=True)


def clear(out: Path) -> None:
    """Remove what is left of the workspace of a run that was killed behind its last rename."""
    folder = _partial(out)
    if folder.is_dir() and not (folder / _SET).exists():  # that would be work of another run
        with suppress(Timeout, OSError), FileLock(folder / _LOCK, timeout=0):
            shutil.rmtree(folder, ignore_errors=True)


def check_free(out: Path, overwrite: bool) -> None:
    """Stop unless ``out`` is free, or is something of ours that may be replaced."""
    check_out(out)
    if not out.exists():
        return
    if not any(out.iterdir()):
        return
    if not overwrite:
        raise UserError(f"{out}: is not empty; give another folder or allow overwriting.")
    is_set = (out / "meta.json").is_file() and (out / "images.bin").is_file()
    if not is_set and not ((out / PART).is_file() and (out / CHUNKS).is_dir()):
        raise UserError(f"{out}: is not a prepared set and will not be overwritten; remove it.")


def _partial(out: Path) -> Path:
    return out.with_name(out.name + ".partial")
