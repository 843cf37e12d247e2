"""One run at a time in a folder.

The file ``lock`` is locked by the kernel (`filelock`), so the lock ends with its process, however
that ends. NFS, and Lustre mounted with ``flock``, hand it on between machines. On a disk without
locks the file itself is the lock, and says which process of which machine made it.
"""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, SoftFileLock, Timeout

from medclip_debias.errors import UserError, explained
from medclip_debias.files import check_out

NAME = "lock"
_PATIENCE = 1.0  # seconds, for `holder_of` takes the lock for a moment


@contextmanager
def locked(out: Path, does: str = "another run{} trains") -> Iterator[None]:
    """Hold the folder of a run; ``does`` says what holds it otherwise, ``{}`` who that is."""
    path = out / NAME
    check_out(out)
    lock = FileLock(path)
    with explained(f"{out}: cannot be written; give another folder in 'out'", OSError):
        out.mkdir(parents=True, exist_ok=True)
        try:
            with warnings.catch_warnings(action="ignore"):  # that a disk has no locks
                lock.acquire(timeout=_PATIENCE)
        except Timeout:
            holder = _read(path)
            who = f" ({holder})" if holder else ""
            over = "" if holder else f" (if none does, remove {path})"
            raise UserError(
                f"{out}: {does.format(who)} in this folder right now{over}; wait for it, stop "
                "it, or give another 'out'."
            ) from None
    is_kernel_lock = not isinstance(lock, SoftFileLock)  # the other writes a record of its own
    try:
        if is_kernel_lock:
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            with suppress(OSError):
                path.write_text(f"process {os.getpid()} on {socket.gethostname()}, since {since}\n")
        yield
    finally:
        if is_kernel_lock:
            with suppress(OSError):
                path.unlink()  # while it is held: who waits for it looks whether it is still there
        lock.release()


def holder_of(out: Path) -> str | None:
    """Who trains in ``out`` now, in words; None where nobody does, or it cannot be known."""
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


def _read(path: Path) -> str | None:
    """The record of a process; None where there is none, or it is about to be written."""
    line = ""
    with suppress(OSError, ValueError):
        if path.is_file():
            with path.open(encoding="utf-8") as stream:
                line = stream.readline(200).strip()
    return line if line.startswith("process ") else None
