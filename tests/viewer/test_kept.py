"""What is kept between clicks goes when it is used, when its page is closed, or after a time."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from medclip_debias.viewer import sessions as sessions_module
from medclip_debias.viewer.sessions import ABSENT_LIVES, OPEN_LIVES, Sessions


@dataclass(frozen=True, eq=False)
class Shown:
    """An image of the page, as far as sessions look at it."""

    word: str
    pixels: object


def shown(word):
    return Shown(word, SimpleNamespace(bytes=word.encode))


@pytest.fixture
def clock():
    return SimpleNamespace(now=1000.0)


@pytest.fixture
def sessions(clock):
    return Sessions(lambda: clock.now)


def test_a_session_ends_with_its_last_connection_or_unused_after_a_time(sessions, clock):
    for _ in "12":
        sessions.connected("open")
    names = {name: sessions.keep(name, shown(name)) for name in ("open", "absent")}
    clock.now += ABSENT_LIVES + 1
    sessions.sweep()
    assert sessions.image("absent", names["absent"]) is None
    sessions.disconnected("open")
    clock.now += OPEN_LIVES - ABSENT_LIVES
    sessions.sweep()
    assert sessions.image("open", names["open"]) is None
    # Its page is open still: what it is given now does not end as if nobody were there.
    again = sessions.keep("open", shown("again"))
    clock.now += ABSENT_LIVES + 1
    sessions.sweep()
    assert sessions.image("open", again).word == "again"
    sessions.disconnected("open")
    assert len(sessions) == 0


def test_the_session_that_was_not_used_for_longest_makes_room(sessions, clock, monkeypatch):
    monkeypatch.setattr(sessions_module, "MOST_SESSIONS", 2)
    names = {}
    for name in "aba":
        clock.now += 1
        names[name] = sessions.keep(name, shown(name))
    sessions.keep("c", shown("c"))
    assert [sessions.image(name, names[name]) is None for name in "ab"] == [False, True]


def test_pixels_that_no_page_fetched_make_room_by_their_bytes(sessions, clock, monkeypatch):
    monkeypatch.setattr(sessions_module, "MOST_PIXELS", 10)
    names = {}
    for name, word in (("a", "12345"), ("b", "12345"), ("c", "1234"), ("d", "1")):
        clock.now += 1
        names[name] = sessions.keep(name, shown(word))
    waiting = [sessions.pixels(name, names[name]) for name in "abcd"]
    assert waiting == [None, b"12345", b"1234", b"1"]
    assert all(sessions.image(name, names[name]) is not None for name in "abcd")
    # One that is larger than all that may wait is opened all the same, alone.
    large = sessions.keep("large", shown("x" * 20))
    assert sessions.pixels("large", large) == b"x" * 20
