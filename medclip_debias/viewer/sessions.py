"""What each open page keeps in memory: its radiograph and its pictures, until it is closed."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from medclip_debias.viewer.answers import ViewedImage

MOST_SESSIONS = 32
# Seconds without a request until a radiograph is freed: of an open page, and of a client that
# holds no connection, so that its end cannot be seen.
OPEN_LIVES = 4 * 3600
ABSENT_LIVES = 60


@dataclass
class _Session:
    used: float
    connections: int = 0
    image: ViewedImage | None = None
    pictures: dict[str, list[str]] = field(default_factory=dict)


class Sessions:
    """Radiographs and pictures by session; nothing of them is on the disk.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._sessions: dict[str, _Session] = {}
        self._pictures: dict[str, bytes] = {}
        self.at_end: list[Callable[[str], None]] = []

    def __len__(self) -> int:
        return len(self._sessions)

    def connected(self, session: str) -> None:
        """A page holds a connection from now on."""
        with self._lock:
            self._of(session).connections += 1

    def disconnected(self, session: str) -> None:
        """A connection ended; the session ends with its last one."""
        with self._lock:
            one = self._sessions.get(session)
            if one is None:
                return
            one.connections -= 1
            last = one.connections <= 0
        if last:
            self.end(session)

    def keep(self, session: str, image: ViewedImage | None) -> None:
        """Make a radiograph that of a session, in place of the one before."""
        with self._lock:
            self._of(session).image = image
            held = [name for name, one in self._sessions.items() if one.image is not None]
            held.sort(key=lambda name: self._sessions[name].used)
        for name in held[: max(0, len(held) - MOST_SESSIONS)]:
            self.end(name)

    def image(self, session: str) -> ViewedImage | None:
        """The radiograph of a session."""
        with self._lock:
            one = self._sessions.get(session)
            if one is None:
                return None
            one.used = self._clock()
            return one.image

    def show(self, session: str, place: str, pictures: Sequence[bytes]) -> list[str]:
        """Offer pictures at one place of a session's page, instead of those before.

        Args:
            session: whose page.
            place: on the page.
            pictures: PNG files.

        Returns:
            A random name for each, which `picture` takes.
        """
        names = [secrets.token_urlsafe(16) for _ in pictures]
        with self._lock:
            one = self._of(session)
            for name in one.pictures.get(place, []):
                self._pictures.pop(name, None)
            one.pictures[place] = names
            self._pictures.update(zip(names, pictures, strict=True))
        return names

    def picture(self, name: str) -> bytes | None:
        """A PNG file that a page shows at present."""
        with self._lock:
            return self._pictures.get(name)

    def end(self, session: str) -> None:
        """Free all of a session at once; a page that is still open may begin again."""
        with self._lock:
            one = self._sessions.pop(session, None)
            if one and one.connections > 0:
                self._sessions[session] = _Session(self._clock(), one.connections)
            for name in [name for names in one.pictures.values() for name in names] if one else []:
                self._pictures.pop(name, None)
        for tell in self.at_end:
            tell(session)

    def sweep(self) -> None:
        """End the sessions that were not used for too long."""
        now = self._clock()
        with self._lock:
            late = [
                name
                for name, one in self._sessions.items()
                if now - one.used > (OPEN_LIVES if one.connections > 0 else ABSENT_LIVES)
            ]
        for name in late:
            self.end(name)

    def _of(self, session: str) -> _Session:
        one = self._sessions.setdefault(session, _Session(self._clock()))
        one.used = self._clock()
        return one
