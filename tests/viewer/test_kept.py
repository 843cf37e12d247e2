"""What is kept between clicks goes when it is used, when its page is closed, or after a time."""

from __future__ import annotations

import io

import pytest

from medclip_debias.errors import UserError
from medclip_debias.viewer import sessions as sessions_module
from medclip_debias.viewer.sessions import ABSENT_LIVES, OPEN_LIVES, Sessions
from medclip_debias.viewer.uploads import CLAIMED_LIVES, UNCLAIMED_LIVES, Uploads


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def uploads(tmp_path, clock):
    return Uploads(tmp_path / "uploads", clock)


def files(tmp_path):
    return [path.name for path in tmp_path.rglob("*") if path.is_file()]


def test_an_upload_that_nobody_opens_is_removed_after_a_time(uploads, clock, tmp_path):
    never = uploads.add("never.png", io.BytesIO(b"1"))
    slow = uploads.add("slow.png", io.BytesIO(b"2"))
    assert uploads.claim(slow, "a")
    clock.now += UNCLAIMED_LIVES + 1
    uploads.sweep()
    assert files(tmp_path) == ["slow.png"]
    assert not uploads.claim(never, "a")
    clock.now += CLAIMED_LIVES
    uploads.sweep()
    assert files(tmp_path) == []
    assert list((tmp_path / "uploads").iterdir()) == []


def test_an_upload_belongs_to_one_session_and_ends_with_it(uploads, tmp_path):
    ticket = uploads.add("a.png", io.BytesIO(b"1"))
    with pytest.raises(UserError, match="once more"):
        uploads.path(ticket, "a")
    assert uploads.claim(ticket, "a")
    assert not uploads.claim(ticket, "b")
    assert uploads.path(ticket, "a").read_bytes() == b"1"
    with pytest.raises(UserError):
        uploads.path(ticket, "b")
    uploads.end("b")
    assert files(tmp_path) == ["a.png"]
    uploads.end("a")
    assert files(tmp_path) == []


def test_a_link_in_place_of_an_upload_is_not_followed(uploads, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    ticket = uploads.add("a.png", io.BytesIO(b"1"))
    uploads.claim(ticket, "a")
    path = uploads.path(ticket, "a")
    path.unlink()
    path.symlink_to(secret)
    with pytest.raises(UserError):
        uploads.path(ticket, "a")
    uploads.remove(ticket)
    assert secret.read_text() == "secret"


def test_a_file_whose_writing_fails_is_not_kept(uploads, tmp_path):
    class Broken(io.BytesIO):
        def read(self, *_):
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        uploads.add("a.png", Broken())
    assert len(uploads) == 0
    assert files(tmp_path) == []


def test_pictures_are_replaced_at_their_place_and_end_with_the_session():
    sessions = Sessions()
    (first,) = sessions.show("a", "pictures", [b"1"])
    (hit,) = sessions.show("a", "hits", [b"2"])
    (second,) = sessions.show("a", "pictures", [b"3"])
    (other,) = sessions.show("b", "pictures", [b"4"])
    assert sessions.picture(first) is None
    assert (sessions.picture(hit), sessions.picture(second)) == (b"2", b"3")
    sessions.end("a")
    assert (sessions.picture(hit), sessions.picture(second)) == (None, None)
    assert sessions.picture(other) == b"4"


def test_a_session_ends_with_its_last_connection(monkeypatch):
    sessions, ended = Sessions(), []
    sessions.at_end.append(ended.append)
    sessions.connected("a")
    sessions.connected("a")
    sessions.disconnected("a")
    assert ended == []
    sessions.disconnected("a")
    assert ended == ["a"]
    assert len(sessions) == 0


def test_sessions_that_are_not_used_end_sooner_where_nobody_is_connected(clock):
    sessions = Sessions(clock)
    sessions.connected("open")
    for name in ("open", "absent"):
        sessions.keep(name, name)
    clock.now += ABSENT_LIVES + 1
    sessions.sweep()
    assert list(sessions._sessions) == ["open"]
    clock.now += OPEN_LIVES - ABSENT_LIVES
    sessions.sweep()
    assert sessions.image("open") is None
    # Its page is open still: what it is given now does not end as if nobody were there.
    sessions.keep("open", "again")
    clock.now += ABSENT_LIVES + 1
    sessions.sweep()
    assert sessions.image("open") == "again"
    sessions.disconnected("open")
    assert len(sessions) == 0


def test_the_session_that_was_not_used_for_longest_makes_room(clock, monkeypatch):
    monkeypatch.setattr(sessions_module, "MOST_SESSIONS", 2)
    sessions = Sessions(clock)
    for name in ("a", "b"):
        clock.now += 1
        sessions.keep(name, name)
    clock.now += 1
    sessions.image("a")
    sessions.keep("c", "c")
    assert set(sessions._sessions) == {"a", "c"}
