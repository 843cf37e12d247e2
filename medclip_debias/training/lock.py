"""One run at a time in a folder, also where several machines share the disk.

Two things say that a folder is taken. A lock of the kernel on the file ``lock`` ends with its
process, however that ends; NFS and Lustre hand it on between machines, unless they are mounted
without locks or with locks of each machine alone, which nobody can see from here. So the file
also says who holds it, and the holder renews it every `BEAT` seconds. Whoever finds the record of
another machine watches it for `SILENT` seconds by its own clock: clocks of machines differ. A
record that moves is a run that lives; one that does not is left by a run that was killed.

A holder that was itself silent for so long (stopped, its disk gone) finds the record of another
run when it comes back, and must end before it writes anything: `RunLock.check`.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from medclip_debias.errors import UserError, explained
from medclip_debias.files import json_or_none
from medclip_debias.owner import Owner, boot

NAME = "lock"
BEAT, SILENT, LOOK = 10.0, 60.0, 2.0
"""Seconds between renewals; without one until a holder counts as gone; between two looks."""

_SIZE = 512  # of a record: always written whole, in one go
_BUSY = {errno.EACCES, errno.EAGAIN}
_held: dict[str, int] = {}  # folders that this process holds; a forked process holds none

Say = Callable[[str], None]


@dataclass(frozen=True)
class Holder:
    """Who holds a folder.

    Attributes:
        owner: the process.
        host: its machine's name.
        boot: name of its machine's last start.
        since: when it took the folder, in its own time.
        token: names this very holding.
    """

    owner: Owner
    host: str
    boot: str
    since: str
    token: str

    @classmethod
    def me(cls) -> Holder:
        """This process, from now on."""
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        return cls(Owner.here(), socket.gethostname(), boot(), now, secrets.token_hex(8))

    def __str__(self) -> str:
        return f"process {self.owner.pid} on {self.host}, since {self.since}"

    def record(self, beat: int) -> bytes:
        """What the file holds after ``beat`` renewals."""
        content = {"pid": self.owner.pid, "host": self.host[:100], "since": self.since}
        content |= {"machine": self.owner.machine, "started": self.owner.started}
        content |= {"boot": self.boot, "token": self.token, "beat": beat}
        return json.dumps(content).ljust(_SIZE - 1).encode() + b"\n"

    @classmethod
    def parse(cls, record: bytes) -> Holder | None:
        """Who wrote a record; None for one that nobody can read."""
        found = json_or_none(record)
        try:
            owner = Owner(str(found["machine"]), int(found["pid"]), int(found["started"]))
            words = (str(found[name]) for name in ("host", "boot", "since", "token"))
            return cls(owner, *words)
        except (ValueError, KeyError, TypeError):  # damaged, or not a record
            return None


class RunLock:
    """A folder that is held; opened by `locked`."""

    def __init__(self, out: Path, handle: int) -> None:
        self.out = out
        self._path = out / NAME
        self._key = os.path.realpath(out)
        self._handle = handle
        self._me = Holder.me()
        self._beats = 0
        self._lost: Holder | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="run-lock", daemon=True)
        os.ftruncate(handle, 0)
        self._write()
        _held[self._key] = os.getpid()
        self._thread.start()

    def check(self) -> None:
        """See that the folder is still held by this run; call it before anything is written.

        Raises:
            UserError: another run took it, as this one gave no sign of life for too long.
        """
        if self._lost is None:
            with suppress(OSError):  # what is written next tells it better
                self._look()
        if self._lost is not None:
            raise UserError(
                f"{self.out}: another run took over this folder ({self._lost}), as this one gave "
                f"no sign of life for {SILENT:.0f} s; it ends here and writes nothing more."
            )

    def release(self) -> None:
        """Give the folder back."""
        if _held.get(self._key) != os.getpid():
            return  # a forked process holds nothing
        self._over.set()
        self._thread.join(timeout=1)
        with suppress(OSError):
            self._look()
            if self._lost is None:
                self._path.unlink()
        del _held[self._key]
        os.close(self._handle)

    def _renew(self) -> None:
        while not self._over.wait(BEAT) and self._lost is None:
            with suppress(OSError):  # the next write reports a disk that does not answer
                self._look()
                if self._lost is None:
                    self._write()

    def _look(self) -> None:
        """Whose record the file holds now. Opening it again would end the kernel's lock."""
        found = None
        with suppress(FileNotFoundError):
            if self._path.stat().st_ino != os.fstat(self._handle).st_ino:
                # Another file: it is read only now that the lock on ours means nothing any more.
                found = Holder.parse(self._path.read_bytes())
        found = found or Holder.parse(os.pread(self._handle, _SIZE, 0))
        if found is not None and found.token != self._me.token:
            self._lost = found

    def _write(self) -> None:
        self._beats += 1
        os.pwrite(self._handle, self._me.record(self._beats), 0)
        os.fsync(self._handle)


@contextmanager
def locked(out: Path, say: Say | None = None) -> Iterator[RunLock]:
    """Hold the folder of a run.

    Args:
        out: the folder; created when missing.
        say: called when the record of another machine has to be watched.

    Raises:
        UserError: another run holds it, or it cannot be written.
    """
    with explained(f"{out}: cannot be written; give another folder in 'out'", OSError):
        lock = _take(out, say or (lambda _: None))
    try:
        yield lock
    finally:
        lock.release()


def holder_of(out: Path) -> Holder | None:
    """Who trains in ``out`` at this moment, as far as can be known without waiting."""
    path = out / NAME
    if _held.get(os.path.realpath(out)) == os.getpid():
        return Holder.me()  # reading the file would end the kernel's lock
    try:
        found = Holder.parse(path.read_bytes())
        age = time.time() - path.stat().st_mtime
    except OSError:
        return None
    if found is None:
        return None
    state = found.owner.state()
    return found if state == "alive" or (state == "elsewhere" and age < 5 * SILENT) else None


# --------------------------------------------------------------------------------- taking


def _take(out: Path, say: Say) -> RunLock:
    if out.is_file():
        raise UserError(f"{out}: is a file; give a folder for the run in 'out'.")
    if _held.get(os.path.realpath(out)) == os.getpid():
        raise UserError(f"{out}: this process trains in it already; give another 'out'.")
    out.mkdir(parents=True, exist_ok=True)
    path = out / NAME
    first: bytes | None = None  # the record that is watched
    began = 0.0
    while True:
        handle, new = _open(path)
        try:
            kernel = _kernel_lock(handle)
            record = os.pread(handle, _SIZE, 0)
            state = _judge(kernel, record, new)
            now = time.monotonic()
            if state == "unknown":
                if first is None:
                    first, began = record, now
                    say(_watching(out, record))
                elif record != first:
                    state = "held"
                elif now - began >= SILENT:
                    if kernel is False:
                        raise _taken(out, record, silent=True)
                    state = "free"
            if state == "held":
                raise _taken(out, record)
            if state == "free":
                if not _same(path, handle):
                    continue
                lock, handle = RunLock(out, handle), -1
                return lock
        finally:
            if handle >= 0:
                os.close(handle)
        time.sleep(LOOK)


def _open(path: Path) -> tuple[int, bool]:
    """The lock's file, and whether it was created just now."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), True
    except FileExistsError:
        return os.open(path, os.O_RDWR | os.O_CREAT, 0o666), False


def _kernel_lock(handle: int) -> bool | None:
    """Whether the kernel gives the lock; None where the disk has no locks."""
    try:
        # Of the kind that ends with its process and is not handed on to forked ones.
        fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _BUSY else None
    return True


def _judge(kernel: bool | None, record: bytes, new: bool) -> str:
    """``free``, ``held``, or ``unknown``: another machine's, which time must tell."""
    holder = Holder.parse(record)
    if holder is None:
        if kernel is None:
            return "free" if new else "unknown"
        return "free" if kernel else "held"  # the latter: it is about to write its record
    same_machine = bool(holder.boot) and holder.boot == boot()
    if kernel is not None and same_machine:
        return "free" if kernel else "held"  # containers of one machine too
    state = holder.owner.state()
    if state == "gone" and kernel is not False:
        return "free"
    return "held" if state == "alive" else "unknown"


def _same(path: Path, handle: int) -> bool:
    """Whether the file that was locked still has its name; its holder removes it at the end."""
    try:
        return path.stat().st_ino == os.fstat(handle).st_ino
    except FileNotFoundError:
        return False


def _taken(out: Path, record: bytes, *, silent: bool = False) -> UserError:
    holder = Holder.parse(record)
    who = f" ({holder})" if holder else ""
    if silent:
        return UserError(
            f"{out}: the disk says that another run{who} holds this folder, but it gave no sign of "
            f"life for {SILENT:.0f} s; if it has ended, remove {out / NAME}, else wait for it."
        )
    return UserError(
        f"{out}: another run{who} trains in this folder right now; wait for it, stop it, or give "
        "another 'out'."
    )


def _watching(out: Path, record: bytes) -> str:
    holder = Holder.parse(record)
    who = str(holder) if holder else "a process that is not named"
    return (
        f"{out}: a run of another machine ({who}) left its lock; watching it for {SILENT:.0f} s, "
        "to see whether it still works."
    )
