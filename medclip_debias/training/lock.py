"""One run at a time in a folder.

The file ``lock`` is locked by the kernel (`filelock`), so the lock ends with its process, however
that ends. NFS, and Lustre mounted with ``flock``, hand it on between machines. On a disk without
locks the file itself is the lock, and says which process of which machine made it.
"""

from __future__ import annotations

import json
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from medclip_debias.errors import UserError, explained
from medclip_debias.files import read_json_or_none

NAME = "lock"


@dataclass(frozen=True)
class Holder:
    """The process that holds a folder: its number, its machine, and when it took the folder."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, since {self.since}"


@contextmanager
def locked(out: Path) -> Iterator[None]:
    """Hold the folder of a run."""
    path = out / NAME
    if out.is_file():
        raise UserError(f"{out}: is a file; give a folder for the run in 'out'.")
    lock = FileLock(path)
    with explained(f"{out}: cannot be written; give another folder in 'out'", OSError):
        out.mkdir(parents=True, exist_ok=True)
        try:
            with warnings.catch_warnings(action="ignore"):  # that a disk has no locks
                lock.acquire(timeout=1)  # `holder_of` takes it for a moment
        except Timeout:
            holder = _read(path)
            who = f" ({holder})" if holder else ""
            over = "" if holder else f" (if none does, remove {path})"
            raise UserError(
                f"{out}: another run{who} trains in this folder right now{over}; wait for it, stop "
                "it, or give another 'out'."
            ) from None
    if isinstance(lock, SoftFileLock):  # it writes a record of its own
        try:
            yield
        finally:
            lock.release()
        return
    holder = Holder(os.getpid(), socket.gethostname(), time.strftime("%Y-%m-%d %H:%M:%S"))
    with suppress(OSError), path.open("r+", encoding="utf-8") as stream:
        stream.write(json.dumps(asdict(holder)) + "\n")
        stream.truncate()
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()  # while it is held: who waits for it looks whether it is still there
        lock.release()


def holder_of(out: Path) -> Holder | None:
    """Who trains in ``out`` at this moment; None where nobody does, or it cannot be known."""
    path = out / NAME
    holder = _read(path)
    if holder is None:
        return None
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return holder
    except OSError:
        return None
    lock.release()
    return None


def _read(path: Path) -> Holder | None:
    content = read_json_or_none(path)
    try:
        return Holder(int(content["pid"]), str(content["host"]), str(content["since"]))
    except (TypeError, KeyError, ValueError):  # not a record, or its process is about to write it
        return None
