"""What is kept between clicks goes when it is used, when its page is closed, or after a time."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from medclip_debias.errors import UserError
from medclip_debias.viewer import sessions as sessions_module
from medclip_debias.viewer import uploads as uploads_module
from medclip_debias.viewer.sessions import ABSENT_LIVES, OPEN_LIVES, Sessions
from medclip_debias.viewer.uploads import Uploads


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def shown(word):
    """Stands for a radiograph: the sessions look at its pixels alone."""
    kept = SimpleNamespace(word=word, pixels=None)
    pixels = SimpleNamespace(bytes=word.encode)
    return SimpleNamespace(word=word, pixels=pixels, kept=lambda: kept)


def files(tmp_path):
    return [path.name for path in tmp_path.rglob("*") if path.is_file()]


def test_an_upload_is_there_while_it_is_read_and_private(tmp_path):
    uploads = Uploads(tmp_path / "uploads")
    with uploads.place("../a b.png") as (path, stream):
        stream.write(b"1")
        stream.close()
        assert path.read_bytes() == b"1"
        assert path.name == "a b.png"
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.parent == tmp_path / "uploads"
    assert list((tmp_path / "uploads").iterdir()) == []

    def fail():
        with uploads.place("b.png") as (_, stream):
            stream.write(b"2")
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        fail()
    assert files(tmp_path) == []


def test_only_so_many_uploads_are_there_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(uploads_module, "MOST_AT_ONCE", 1)
    uploads = Uploads(tmp_path / "uploads")
    with (
        uploads.place("a.png"),
        pytest.raises(UserError, match="too many files"),
        uploads.place("b.png"),
    ):
        pass
    with uploads.place("c.png"):
        assert files(tmp_path) == ["c.png"]


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
