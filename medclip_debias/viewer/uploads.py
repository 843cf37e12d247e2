"""Files that arrive: counted, limited, and removed as soon as they were read."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from medclip_debias.errors import UserError

MAX_UPLOAD = 256 << 20  # bytes; no single radiograph comes near
MOST_AT_ONCE = 8
LONGEST_NAME = 100


class Uploads:
    """Places for files that are being sent; a client never learns or names one of them.

    Args:
        folder: where they lie; it is created, for this user alone.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._folder = folder.resolve()
        self._lock = threading.Lock()
        self._count = 0

    @contextmanager
    def place(self, name: str) -> Iterator[tuple[Path, BinaryIO]]:
        """A new file, open for writing, that is gone when this is left, however it is left.

        Args:
            name: that the client gave; only its last part is kept, without odd characters.

        Raises:
            UserError: `MOST_AT_ONCE` files are there already.
        """
        with self._lock:
            if self._count >= MOST_AT_ONCE:
                raise UserError("too many files arrive at once; try again in a minute.")
            self._count += 1
        path = self._folder / secrets.token_urlsafe(16) / clean_name(name)
        try:
            path.parent.mkdir(mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with os.fdopen(os.open(path, flags, 0o600), "wb") as stream:
                yield path, stream
        finally:
            shutil.rmtree(path.parent, ignore_errors=True)
            with self._lock:
                self._count -= 1


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
