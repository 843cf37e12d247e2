"""What a run has done so far, on disk, so that a killed run resumes where it was.

A run owns the folder ``OUT.partial``: a lock, the recipe it follows, a journal of finished
reports, a journal of finished images, and the set that grows. Results enter a journal in the
order of the jobs, after the pixels they speak of. A new run asks for the same jobs again, skips
those that the journal answers, and cuts off the journal where a job is no longer the same.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from typing import Any

from medclip_debias.data.parallel import WorkerKilled
from medclip_debias.errors import UserError
from medclip_debias.files import exchange, json_or_none, read_json_or_none, take_back, write_json

Job = tuple[Any, Any]
"""What names a job (JSON values, compared with the journal's), and what is needed to do it."""


LOCK = "lock"
_SET, _OLD = "set", "old"


class Journal:
    """Lines of JSON, ``{"head": ..., ...}`` each; a last line that was cut off does not count."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self) -> Iterator[tuple[int, int, dict[str, Any]]]:
        """Yield where each entry starts and ends, and the entry, up to the first damaged one."""
        if not self.path.exists():
            return
        start = 0
        with self.path.open("rb") as file:
            for line in file:
                entry = json_or_none(line) if line.endswith(b"\n") else None
                if entry is None:
                    return
                yield start, start + len(line), entry
                start += len(line)

    def append(self, entries: Iterable[dict[str, Any]]) -> None:
        """Add entries; on return they are on the disk."""
        lines = "".join(json.dumps(e, separators=(",", ":")) + "\n" for e in entries)
        with self.path.open("ab") as file:
            file.write(lines.encode())
            file.flush()
            os.fsync(file.fileno())

    def unfinished(
        self, jobs: Iterable[Job], finished: Callable[[dict[str, Any]], None]
    ) -> Iterator[Job]:
        """Return the jobs whose results are not here yet.

        The entries must answer the first jobs, in order. From the first that does not, or that
        was cut off by a kill, they are removed.

        Args:
            jobs: all jobs of the run.
            finished: called with each entry that answers a job.
        """
        waiting = iter(jobs)
        end = 0
        for _, stop, entry in self.entries():
            job = next(waiting, None)
            if job is None or job[0] != entry["head"]:
                waiting = iter(()) if job is None else chain([job], waiting)
                break
            finished(entry)
            end = stop
        if self.path.exists() and self.path.stat().st_size > end:
            os.truncate(self.path, end)
        return waiting

    def reader(self) -> Callable[[int], dict[str, Any]]:
        """Return a function that reads the entry that starts at an offset."""
        file = self.path.open("rb")

        def read(offset: int) -> dict[str, Any]:
            file.seek(offset)
            entry: dict[str, Any] = json.loads(file.readline())
            return entry

        return read


class Workspace:
    """The folder ``OUT.partial`` of a run; what becomes ``OUT`` grows in its folder ``set``.

    Args:
        folder: the folder.
        part: the run makes one part of a set; a part's journals belong to it.

    Attributes:
        found: an earlier run left results here, which this run has not thrown away.
    """

    def __init__(self, folder: Path, part: bool = False) -> None:
        self.folder = folder
        self.set = folder / _SET
        place = self.set if part else folder
        self.reports, self.images = journals(place)
        self.views = Journal(folder / "views.jsonl")
        self.rows = self.set / "images.bin"
        self.found = self.started

    def follow(self, recipe: dict[str, Any]) -> str:
        """Keep what a run with the same recipe left here, or start anew.

        Returns:
            A sentence on what was found, or ``""``.
        """
        path = self.folder / "recipe.json"
        found = read_json_or_none(path)
        if found == recipe and self.set.is_dir():
            return f"{self.folder}: resuming an interrupted run." if self.started else ""
        for left in self.folder.iterdir():
            if left.is_dir():
                shutil.rmtree(left)
            elif left.name != LOCK:
                left.unlink()
        self.set.mkdir()
        self.found = False
        write_json(path, recipe)
        if found is None:
            return ""
        return (
            f"{self.folder}: was left by a run with other settings, another source or another"
            " version; starting over."
        )

    def check_room(self, size: int) -> None:
        """Stop before the work starts when the disk cannot hold ``size`` bytes of rows."""
        there = self.rows.stat().st_size if self.rows.exists() else 0
        free = shutil.disk_usage(self.folder).free + there
        if free < size:
            needed, left = (f"{value / 1e6:,.1f} MB" for value in (size, free))
            raise OSError(errno.ENOSPC, f"its images need {needed}, the disk has {left} left")

    @property
    def started(self) -> bool:
        """Whether any result is in the journals."""
        kept = (self.views, self.reports, self.images)
        return any(j.path.exists() and j.path.stat().st_size for j in kept)

    def move_to(self, out: Path) -> None:
        """Put the finished set in the place of ``out``, and remove this folder."""
        for path in self.set.iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        exchange(self.set, out, self.folder / _OLD)
        self.discard()

    def discard(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def journals(folder: Path) -> tuple[Journal, Journal]:
    """Return the journals of the reports and of the images in ``folder``."""
    return Journal(folder / "reports.jsonl"), Journal(folder / "images.jsonl")


def clear(out: Path) -> None:
    """Remove what is left of the workspace of a run that was killed behind its last rename."""
    folder = out.with_name(out.name + ".partial")
    if not folder.is_dir() or (folder / _SET).exists():  # the latter is work of another run
        return
    with suppress(UserError, OSError), workspace(out) as work:
        work.discard()


@contextmanager
def workspace(out: Path, part: bool = False) -> Iterator[Workspace]:
    """Own ``OUT.partial`` for the length of a run.

    Args:
        out: what the run makes.
        part: see `Workspace`.

    Raises:
        UserError: another run owns it.
    """
    folder = out.with_name(out.name + ".partial")
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / LOCK
        try:
            file = path.open("a+")
        except FileNotFoundError:
            continue  # the owner has just finished and removed the folder
        # A lock of this kind ends with its process, however that ends, and is not handed on to
        # worker processes that may outlive it for a moment.
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise UserError(
                    f"{out}: its disk has no file locks ({error.strerror}), without which two runs"
                    " could write into one folder; prepare on another disk and copy the set."
                ) from error
            raise UserError(
                f"{out}: another run is preparing it right now; wait for it or give another folder."
            ) from error
        try:
            same = path.stat().st_ino == os.fstat(file.fileno()).st_ino
        except FileNotFoundError:
            same = False
        if same:
            break
        file.close()
    try:
        take_back(out, folder / _OLD)  # a run was killed between the renames of `move_to`
        yield Workspace(folder, part)
    finally:
        file.close()


@contextmanager
def making(out: Path, part: bool = False) -> Iterator[Workspace]:
    """Own ``OUT.partial`` and tell what goes wrong with the disk in one sentence.

    The folder is removed when the input is at fault, and kept when a run can resume from it or an
    earlier run left work in it.

    Args:
        out: what the run makes.
        part: see `Workspace`.

    Raises:
        UserError: another run owns the folder, or it cannot be written.
    """
    remedy = "make room or choose another folder"
    try:
        with workspace(out, part) as work:
            try:
                yield work
            except WorkerKilled:
                raise
            except UserError:
                # A disk that is not mounted looks like a source without images: the work of an
                # earlier run is worth more than a tidy folder.
                if not work.found:
                    work.discard()
                raise
            except OSError:
                if work.started:
                    remedy += f"; run the same command again to resume, or remove {work.folder}"
                else:
                    work.discard()
                raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UserError(f"{out}: cannot be written ({reason}); {remedy}.") from error


def check_free(out: Path, overwrite: bool) -> None:
    """Stop unless ``out`` is free, or is something of ours that may be replaced.

    Raises:
        UserError: it is in the way.
    """
    if not out.exists():
        return
    if not out.is_dir():
        raise UserError(f"{out}: is a file; give a folder to make.")
    if not any(out.iterdir()):
        return
    if not overwrite:
        raise UserError(f"{out}: is not empty; give another folder or allow overwriting.")
    ours = any((out / name).is_file() for name in ("meta.json", "part.json"))
    if not ours or not (out / "images.bin").is_file():
        raise UserError(f"{out}: is not a prepared set and will not be overwritten; remove it.")
