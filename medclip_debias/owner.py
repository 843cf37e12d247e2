"""Which process of which machine wrote something, and whether it can still be at work.

The number of a process is not enough: on a shared disk another machine or container has the same
numbers, and a number is given again when its process is gone. So the host's name, its last start
and its set of process numbers (a container has its own) go with it, and when the process began.
"""

from __future__ import annotations

import hashlib
import os
import socket
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

State = Literal["alive", "gone", "elsewhere"]


@dataclass(frozen=True)
class Owner:
    """A process.

    Attributes:
        machine: 8 hex digits for the host, its last start, and its set of process numbers.
        pid: number of the process.
        started: when it began, in the kernel's ticks since the machine's start; 0 if unknown.
    """

    machine: str
    pid: int
    started: int

    @classmethod
    def here(cls) -> Owner:
        """This process."""
        return _of(os.getpid())

    def state(self) -> State:
        """Whether the process runs; ``elsewhere`` where this machine cannot know."""
        if self.machine != _machine():
            return "elsewhere"
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return "gone"
        except PermissionError:  # it is another user's, whose details may be hidden
            pass
        status, started = _process(self.pid)
        if status in ("Z", "X") or (started and self.started and started != self.started):
            return "gone"
        return "alive"


@lru_cache(maxsize=4)
def _of(pid: int) -> Owner:
    return Owner(_machine(), pid, _process(pid)[1])


@lru_cache(maxsize=1)
def boot() -> str:
    """Name of the machine's last start: equal in all its containers; ``""`` if unknown."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


@lru_cache(maxsize=1)
def _machine() -> str:
    try:
        numbers = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        numbers = ""
    words = "\0".join((socket.gethostname(), boot(), numbers))
    return hashlib.sha256(words.encode()).hexdigest()[:8]


def _process(pid: int) -> tuple[str, int]:
    """State letter and start of a process, from the kernel's table; ``("", 0)`` if hidden."""
    try:
        # The name stands in brackets and may itself hold brackets and blanks.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[0].decode("ascii"), int(fields[19])
    except (OSError, ValueError, IndexError):
        return "", 0
