"""A unix socket is private, replaces one that was left behind, and never one that is in use."""

from __future__ import annotations

import socket
import threading

import pytest

from medclip_debias.errors import UserError
from medclip_debias.viewer.serve import listening_at


def test_the_socket_is_this_users_alone_replaces_a_dead_one_and_is_gone_at_the_end(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
        killed.listen()
    with listening_at(path), socket.socket(socket.AF_UNIX) as client:
        client.connect(str(path))
        assert path.stat().st_mode & 0o777 == 0o600
    assert not path.exists()


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


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (lambda path: path.touch(), "s", "not a socket"),
        (lambda path: path.symlink_to("elsewhere"), "s", "not a socket"),
        (lambda path: None, "s" * 120, "at most 100 characters"),
        (lambda path: None, "none/s", "no such folder"),
    ],
    ids=["file", "link", "long", "no folder"],
)
def test_what_is_and_can_be_no_socket_is_refused_and_not_removed(tmp_path, make, name, words):
    path = tmp_path / name
    make(path)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=words), listening_at(path):
        pass
    assert sorted(tmp_path.iterdir()) == before
