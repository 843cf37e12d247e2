"""What is kept between clicks goes when it is used, when its page is closed, or after a time."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from medclip_debias.viewer import sessions as sessions_module
from medclip_debias.viewer.sessions import ABSENT_LIVES, OPEN_LIVES, Sessions


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@dataclass(frozen=True, eq=False)
class Shown:
    """An image of the page, as far as sessions look at it."""

    word: str
    pixels: object


def shown(word):
    return Shown(word, SimpleNamespace(bytes=word.encode))


def test_a_radiograph_is_known_by_its_name_alone_and_its_pixels_go_once():
    sessions = Sessions()
    first = sessions.keep("a", shown("one"))
    second = sessions.keep("a", shown("two"))
    assert sessions.image("a", first) is None
    assert sessions.image("a", second).word == "two"
    assert sessions.image("b", second) is None
    assert sessions.pixels("a", first) is None
    assert sessions.pixels("b", second) is None
    assert sessions.pixels("a", second) == b"two"
    assert sessions.pixels("a", second) is None
    sessions.clear("a")
    assert sessions.image("a", second) is None
    assert sessions.image("a", "") is None


def test_a_session_ends_with_its_last_connection():
    sessions = Sessions()
    sessions.connected("a")
    sessions.connected("a")
    name = sessions.keep("a", shown("x"))
    sessions.disconnected("a")
    assert sessions.image("a", name) is not None
    sessions.disconnected("a")
    assert sessions.image("a", name) is None
    assert len(sessions) == 0


def test_sessions_that_are_not_used_end_sooner_where_nobody_is_connected(clock):
    sessions = Sessions(clock)
    sessions.connected("open")
    names = {name: sessions.keep(name, shown(name)) for name in ("open", "absent")}
    clock.now += ABSENT_LIVES + 1
    sessions.sweep()
    assert sessions.image("absent", names["absent"]) is None
    assert len(sessions) == 1
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


def test_the_session_that_was_not_used_for_longest_makes_room(clock, monkeypatch):
    monkeypatch.setattr(sessions_module, "MOST_SESSIONS", 2)
    sessions = Sessions(clock)
    names = {}
    for name in ("a", "b"):
        clock.now += 1
        names[name] = sessions.keep(name, shown(name))
    clock.now += 1
    sessions.image("a", names["a"])
    sessions.keep("c", shown("c"))
    assert sessions.image("b", names["b"]) is None
    assert sessions.image("a", names["a"]) is not None


def test_pixels_that_no_page_fetched_make_room_by_their_bytes(clock, monkeypatch):
    monkeypatch.setattr(sessions_module, "MOST_PIXELS", 10)
    sessions, names = Sessions(clock), {}
    for name, word in (("a", "12345"), ("b", "12345"), ("c", "1234"), ("d", "1")):
        clock.now += 1
        names[name] = sessions.keep(name, shown(word))
    assert [sessions.pixels(name, names[name]) for name in "abcd"] == [
        None,
        b"12345",
        b"1234",
        b"1",
    ]
    assert all(sessions.image(name, names[name]) is not None for name in "abcd")
    # One that is larger than all that may wait is opened all the same, alone.
    large = sessions.keep("large", shown("x" * 20))
    assert sessions.pixels("large", large) == b"x" * 20
