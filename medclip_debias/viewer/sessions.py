"""What each open page keeps in memory: its radiograph, until it is closed."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from medclip_debias.viewer.answers import ViewedImage

MOST_SESSIONS = 32
MOST_PIXELS = 1 << 30  # bytes of pixels that pages have not fetched yet
# Seconds without a request until a radiograph is freed: of an open page, and of a client that
# holds no connection, so that its end cannot be seen.
OPEN_LIVES = 4 * 3600
ABSENT_LIVES = 60


@dataclass
class _Session:
    used: float
    connections: int = 0
    name: str = ""
    image: ViewedImage | None = None
    pixels: bytes | None = None


class Sessions:
    """Radiographs by session; nothing of them is on the disk. ``clock``: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._sessions: dict[str, _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def connected(self, session: str) -> None:
        """A page holds a connection from now on."""
        with self._lock:
            self._used(session).connections += 1

    def disconnected(self, session: str) -> None:
        """A connection ended; the session ends with its last one."""
        with self._lock:
            if one := self._sessions.get(session):
                one.connections -= 1
                if one.connections <= 0:
                    self._end(session)

    def clear(self, session: str) -> None:
        """Free the radiograph of a session."""
        with self._lock:
            one = self._used(session)
            one.name, one.image, one.pixels = "", None, None

    def keep(self, session: str, image: ViewedImage) -> str:
        """Give a session a radiograph, freeing those unused for longest; its new random name."""
        with self._lock:
            one = self._used(session)
            one.name, one.image = secrets.token_urlsafe(16), replace(image, pixels=None)
            one.pixels = None if image.pixels is None else image.pixels.bytes()
            images = pixels = 0
            newest = sorted(self._sessions, key=lambda key: -self._sessions[key].used)
            for key in sorted(newest, key=lambda key: key != session):
                each = self._sessions[key]
                images += each.image is not None
                pixels += len(each.pixels or b"")
                if each.image is not None and images > MOST_SESSIONS:
                    self._end(key)
                elif pixels > MOST_PIXELS and key != session:
                    each.pixels = None
            return one.name

    def image(self, session: str, name: str) -> ViewedImage | None:
        """The radiograph of a session, if it has still this name."""
        with self._lock:
            return self._used(session).image if self._has(session, name) else None

    def pixels(self, session: str, name: str) -> bytes | None:
        """The pixels of a radiograph, which are handed over once."""
        with self._lock:
            if not self._has(session, name):
                return None
            one = self._sessions[session]
            pixels, one.pixels = one.pixels, None
            return pixels

    def sweep(self) -> None:
        """End the sessions that were not used for too long."""
        now = self._clock()
        with self._lock:
            for name, one in list(self._sessions.items()):
                if now - one.used > (OPEN_LIVES if one.connections > 0 else ABSENT_LIVES):
                    self._end(name)

    def _end(self, session: str) -> None:
        """Free all of a session at once; a page that is still open may begin again."""
        one = self._sessions.pop(session)
        if one.connections > 0:
            self._sessions[session] = _Session(self._clock(), one.connections)

    def _has(self, session: str, name: str) -> bool:
        return bool(name) and session in self._sessions and self._sessions[session].name == name

    def _used(self, session: str) -> _Session:
        one = self._sessions.setdefault(session, _Session(self._clock()))
        one.used = self._clock()
        return one
