"""Files that were uploaded and not yet read: counted, limited, and removed in any case."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from medclip_debias.errors import UserError

MAX_UPLOAD = 256 << 20  # bytes; no single radiograph comes near
MOST_WAITING = 8
# Seconds until a file is removed that nobody opened, and one whose session still waits for it.
UNCLAIMED_LIVES = 60
CLAIMED_LIVES = 3600
LONGEST_NAME = 100


@dataclass
class _Waiting:
    path: Path
    since: float
    session: str | None = None


class Uploads:
    """Uploaded files by a random name; a client never learns or names a place on the disk.

    Args:
        folder: where they lie; it is created, for this user alone.
        clock: seconds that only grow.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder.resolve()
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, name: str, content: BinaryIO) -> str:
        """Keep a file until it is opened.

        Args:
            name: that the client gave; only its last part is kept, without odd characters.
            content: read to its end.

        Returns:
            A random name to open it by.

        Raises:
            UserError: `MOST_WAITING` files wait already.
        """
        self.sweep()
        ticket = secrets.token_urlsafe(16)
        path = self._folder / ticket / clean_name(name)
        with self._lock:
            if len(self._waiting) >= MOST_WAITING:
                raise UserError("too many files wait to be opened; try again in a minute.")
            self._waiting[ticket] = _Waiting(path, self._clock())
        try:
            path.parent.mkdir(mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(path, flags, 0o600), "wb") as stream:
                shutil.copyfileobj(content, stream, 1 << 20)
        except BaseException:
            self.remove(ticket)
            raise
        return ticket

    def claim(self, ticket: str, session: str) -> bool:
        """Bind a file to the session that will open it; False if it is not there for it."""
        with self._lock:
            waiting = self._waiting.get(ticket)
            if waiting is None or waiting.session is not None:
                return False
            waiting.session = session
            return True

    def path(self, ticket: str, session: str) -> Path:
        """The place of a file that this session claimed.

        Raises:
            UserError: there is no such file, or it is not one that this server wrote.
        """
        with self._lock:
            waiting = self._waiting.get(ticket)
        if waiting is not None and waiting.session == session:
            with contextlib.suppress(OSError):
                plain = stat.S_ISREG(waiting.path.lstat().st_mode)
                if plain and waiting.path.resolve() == waiting.path:
                    return waiting.path
        raise UserError("this upload is not there any more; give the file once more.")

    def remove(self, ticket: str) -> None:
        """Remove a file, if it is there."""
        with self._lock:
            waiting = self._waiting.pop(ticket, None)
        if waiting is not None:
            shutil.rmtree(waiting.path.parent, ignore_errors=True)

    def end(self, session: str) -> None:
        """Remove what a session claimed."""
        self._remove_if(lambda waiting: waiting.session == session)

    def sweep(self) -> None:
        """Remove what waits for too long."""
        now = self._clock()

        def late(waiting: _Waiting) -> bool:
            lives = UNCLAIMED_LIVES if waiting.session is None else CLAIMED_LIVES
            return now - waiting.since > lives

        self._remove_if(late)

    def _remove_if(self, wanted: Callable[[_Waiting], bool]) -> None:
        with self._lock:
            tickets = [ticket for ticket, waiting in self._waiting.items() if wanted(waiting)]
        for ticket in tickets:
            self.remove(ticket)


def clean_name(name: str) -> str:
    """The last part of a file's name, of characters that are safe everywhere.

    >>> clean_name("C:\\\\images\\\\..\\\\one\\n.dcm"), clean_name("../.."), clean_name("")
    ('one_.dcm', 'upload', 'upload')
    """
    last = re.split(r"[/\\]", name)[-1]
    cleaned = "".join(one if one.isprintable() else "_" for one in last).strip()
    cleaned = cleaned.encode("utf-8", "replace").decode()
    while len(cleaned.encode()) > LONGEST_NAME:
        # The end is kept, as the kind of the file is said there.
        cleaned = cleaned[1:]
    return cleaned if cleaned.strip(".") else "upload"
