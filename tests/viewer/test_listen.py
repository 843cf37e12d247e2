"""A unix socket is private, replaces one that was left behind, and never one that is in use."""

from __future__ import annotations

import socket
import threading

import pytest

from medclip_debias.errors import UserError
from medclip_debias.viewer.serve import listening_at


def test_the_socket_is_this_users_alone_and_gone_at_the_end(tmp_path):
    path = tmp_path / "s"
    with listening_at(path):
        assert path.is_socket()
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


def test_one_that_was_left_behind_is_replaced(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()
    assert path.is_socket()
    with listening_at(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))


def test_of_many_that_start_at_once_one_wins(tmp_path):
    path, won, lost, all_tried = tmp_path / "s", [], [], threading.Barrier(6)
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))

    def start():
        try:
            with listening_at(path):
                won.append(1)
                all_tried.wait(20)
        except UserError:
            lost.append(1)
            all_tried.wait(20)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (len(won), len(lost)) == (1, 5)


@pytest.mark.parametrize("make", ["touch", "mkdir", "symlink_to"])
def test_what_is_no_socket_is_not_removed(tmp_path, make):
    path = tmp_path / "s"
    getattr(path, make)(*([tmp_path / "elsewhere"] if make == "symlink_to" else []))
    with pytest.raises(UserError, match="not a socket"), listening_at(path):
        pass
    assert path.is_symlink() or path.exists()


@pytest.mark.parametrize(
    ("place", "words"), [("s" * 120, "at most 100 characters"), ("none/s", "no such folder")]
)
def test_a_path_that_cannot_be_a_socket_is_a_sentence(tmp_path, place, words):
    with pytest.raises(UserError, match=words), listening_at(tmp_path / place):
        pass
