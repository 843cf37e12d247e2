"""One run at a time in a folder: on one machine, from a killed holder, and from another host."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import pytest

from medclip_debias.errors import UserError
from medclip_debias.owner import Owner
from medclip_debias.training import lock as lock_module
from medclip_debias.training.lock import NAME, Holder, holder_of, locked


@pytest.fixture
def fast(monkeypatch):
    """The same rules, in tenths of seconds."""
    monkeypatch.setattr(lock_module, "BEAT", 0.05)
    monkeypatch.setattr(lock_module, "LOOK", 0.05)
    monkeypatch.setattr(lock_module, "SILENT", 0.6)


def holding(out, until=None):
    """A process that holds the folder: its number, once it does."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        with locked(out):
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


def foreign(beat=1):
    """The record of a run on another machine."""
    owner = Owner("0" * 8, 4711, 5)
    return Holder(owner, "gpu07", "another start", "2026-01-02 03:04:05", "f" * 16).record(beat)


def test_a_second_process_is_refused_and_reports_who_holds_the_folder(tmp_path):
    child = holding(tmp_path / "run")
    try:
        with pytest.raises(UserError, match=rf"another run \(process {child} on .*, since 20"):
            locked(tmp_path / "run").__enter__()
        assert holder_of(tmp_path / "run").owner.pid == child
    finally:
        kill(child)


def test_what_a_killed_process_held_is_free_at_once(tmp_path):
    out = tmp_path / "run"
    kill(holding(out))
    assert (out / NAME).is_file()
    assert holder_of(out) is None
    began = time.monotonic()
    with locked(out):
        assert time.monotonic() - began < 5
        assert holder_of(out).owner.pid == os.getpid()
    assert list(out.iterdir()) == []


def test_one_process_does_not_hold_a_folder_twice(tmp_path):
    with locked(tmp_path / "run"):
        with pytest.raises(UserError, match="this process trains in it already"):
            locked(tmp_path / "run").__enter__()
        assert holder_of(tmp_path / "run") is not None
        # The second try and the question did not end the kernel's lock of the first.
        child = os.fork()
        if child == 0:  # pragma: no cover
            try:
                locked(tmp_path / "run").__enter__()
            except UserError:
                os._exit(2)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 2
    with locked(tmp_path / "run"):
        pass


def test_a_lock_of_another_host_that_stays_silent_is_taken_over_and_said(tmp_path, fast):
    (tmp_path / NAME).write_bytes(foreign())
    said = []
    began = time.monotonic()
    with locked(tmp_path, said.append):
        assert 0.5 < time.monotonic() - began < 20
        assert Holder.parse((tmp_path / NAME).read_bytes()).owner == Owner.here()
    (sentence,) = said
    assert "process 4711 on gpu07, since 2026-01-02 03:04:05" in sentence


def test_a_lock_of_another_host_that_is_renewed_is_respected(tmp_path, fast):
    path = tmp_path / NAME
    path.write_bytes(foreign())
    over = threading.Event()

    def renew():
        beat = 1
        while not over.wait(0.1):
            beat += 1
            with path.open("r+b") as file:  # in place, as a run does: it is never empty
                file.write(foreign(beat))

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(UserError, match=r"process 4711 on gpu07.*trains in this folder right"):
            locked(tmp_path).__enter__()
    finally:
        over.set()
        thread.join()
    assert Holder.parse(path.read_bytes()).host == "gpu07"


def test_a_disk_without_locks_is_guarded_by_the_record_alone(tmp_path, fast, monkeypatch):
    """As Lustre mounted without `flock`, whose kernel answers ENOSYS."""
    monkeypatch.setattr(lock_module, "_kernel_lock", lambda handle: None)
    child = holding(tmp_path)
    with pytest.raises(UserError, match=f"process {child}"):
        locked(tmp_path).__enter__()
    kill(child)
    with locked(tmp_path):  # its machine knows that it is gone
        pass
    (tmp_path / NAME).write_bytes(foreign())
    said = []
    with locked(tmp_path, said.append):
        assert len(said) == 1


def test_a_holder_on_another_host_that_the_disk_vouches_for_is_not_robbed(
    tmp_path, fast, monkeypatch
):
    monkeypatch.setattr(lock_module, "_kernel_lock", lambda handle: False)
    (tmp_path / NAME).write_bytes(foreign())
    with pytest.raises(UserError, match=r"no sign of life.*if it has ended, remove .*lock"):
        locked(tmp_path).__enter__()
    assert Holder.parse((tmp_path / NAME).read_bytes()).host == "gpu07"


@pytest.mark.parametrize("exchanged", [False, True])
def test_a_run_that_lost_its_folder_ends_before_it_writes(tmp_path, exchanged):
    with locked(tmp_path) as held:
        held.check()
        if exchanged:
            (tmp_path / "other").write_bytes(foreign())
            (tmp_path / "other").replace(tmp_path / NAME)
        else:
            (tmp_path / NAME).write_bytes(foreign())
        with pytest.raises(UserError, match=r"another run took over .*4711 on gpu07"):
            held.check()
    assert (tmp_path / NAME).read_bytes() == foreign()  # the other run's, which stays


def test_the_record_is_renewed_while_the_folder_is_held(tmp_path, fast):
    def beat():
        return json.loads((tmp_path / NAME).read_bytes())["beat"]

    with locked(tmp_path):
        ready, tell = os.pipe()
        child = os.fork()  # reading the file here would end the lock that is looked at
        if child == 0:  # pragma: no cover
            first = beat()
            until = time.monotonic() + 20
            while beat() < first + 3 and time.monotonic() < until:
                time.sleep(0.02)
            os.write(tell, b"+" if beat() >= first + 3 else b"-")
            os._exit(0)
        assert os.read(ready, 1) == b"+"
        os.waitpid(child, 0)


def test_a_damaged_record_does_not_shut_the_folder(tmp_path):
    (tmp_path / NAME).write_bytes(b"{rubbish")
    with locked(tmp_path):
        pass
    assert not (tmp_path / NAME).exists()
