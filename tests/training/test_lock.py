"""One run at a time in a folder, and what is left of a killed one."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time

import pytest

from medclip_debias.errors import UserError
from medclip_debias.training.lock import NAME, holder_of, locked


def holding(out):
    """A process that holds the folder and has a child of its own: its number, once it does."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        with locked(out):
            if os.fork() == 0:  # as a process of the data loader, which may live for seconds more
                time.sleep(5)
                os._exit(0)
            os.write(tell, b".")
            time.sleep(60)
        os._exit(0)
    os.close(tell)
    assert os.read(ready, 1) == b"."
    os.close(ready)
    return child


def kill(child):
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_what_a_killed_process_held_is_free_at_once(tmp_path):
    out = tmp_path / "run"
    kill(holding(out))
    assert (out / NAME).is_file()
    assert holder_of(out) is None
    began = time.monotonic()
    with locked(out):
        assert time.monotonic() - began < 1
        assert holder_of(out).pid == os.getpid()
    assert list(out.iterdir()) == []


def test_one_process_does_not_hold_a_folder_twice(tmp_path):
    with locked(tmp_path):
        with pytest.raises(UserError, match=f"process {os.getpid()} .* trains in this folder"):
            locked(tmp_path).__enter__()
        assert holder_of(tmp_path).pid == os.getpid()
    with locked(tmp_path):
        pass


def test_a_disk_without_locks_is_guarded_by_the_file(tmp_path, monkeypatch):
    """As Lustre mounted without `flock`, whose kernel answers ENOSYS."""

    def none(*_):
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(fcntl, "flock", none)
    child = holding(tmp_path)
    with pytest.raises(UserError, match=r"trains in this folder right now \(if none does, remove"):
        locked(tmp_path).__enter__()
    kill(child)
    with locked(tmp_path):  # its machine knows that it is gone
        pass


def test_a_damaged_record_does_not_shut_the_folder(tmp_path):
    (tmp_path / NAME).write_bytes(b"{rubbish")
    with locked(tmp_path):
        pass
    assert not (tmp_path / NAME).exists()


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UserError, match="give a"):
            locked(out).__enter__()
