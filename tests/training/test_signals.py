"""Signals to a whole process group, dead or stopped processes, and what a machine is short of."""

from __future__ import annotations

import ctypes
import fcntl
import multiprocessing
import os
import pty
import re
import resource
import signal
import socket
import subprocess
import sys
import termios
import time
import traceback
from pathlib import Path

import psutil
import pytest
import torch

from medclip_debias.cli import run as command
from medclip_debias.data import workers as workers_module
from medclip_debias.evaluation import validation
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training.checkpoint import checkpoints
from medclip_debias.training.step import Trainer
from medclip_debias.training.train import train
from tests.training.conftest import in_processes, same, weights

REPO = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def signals_of_a_terminal():
    """Signals as a shell leaves them to a command that it waits for; its jobs ignore two."""
    plain = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in plain.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def code_of(work, limit=60.0):
    """Exit code of ``work`` in a forked process that leads a group; nobody may be left in it."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        code = 1
        try:
            os.setpgid(0, 0)
            torch.set_num_threads(1)
            work()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    until = time.monotonic() + limit
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the run did not end")
        time.sleep(0.05)
    until = time.monotonic() + 10  # workers look after their parent each 5 s
    while left := [p for p in psutil.pids() if alive_in(p, child)]:
        if time.monotonic() > until:
            os.killpg(child, signal.SIGKILL)
            pytest.fail(f"{len(left)} processes are left")
        time.sleep(0.1)
    return os.waitstatus_to_exitcode(status)


def alive_in(pid, group):
    try:
        return os.getpgid(pid) == group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except (ProcessLookupError, psutil.Error):
        return False


def at_step(number, act):
    """Make ``act`` happen before the step ``number`` of this process."""
    step = Trainer.step

    def and_act(self, now, *args, **options):
        if now == number:
            act()
        return step(self, now, *args, **options)

    Trainer.step = and_act


def exits(*words):
    raise SystemExit(command(["train", *words]))


@pytest.fixture(scope="module")
def whole(run_in, tmp_path_factory):
    """The weights of a run that never stopped."""
    run = run_in(tmp_path_factory.mktemp("signals"), "tiny")
    return weights(train(run(checkpoint_every=100)).model)


def resumes_to_the_same(settings, whole, resumed_at):
    """The interrupted run ends in the weights of one that never stopped."""
    result = train(settings)
    assert result.resumed_at == resumed_at
    assert same(weights(result.model), whole)


# ------------------------------------------------------------------------- the whole group


def told(capfd):
    """What a run said on standard error, but for what trains and the lines of its log."""
    lines = capfd.readouterr().err.splitlines()
    return [line for line in lines if not re.match(r"training |trainable |\d{4}-\d\d-\d\d ", line)]


@pytest.mark.parametrize(
    ("name", "code"), [("SIGTERM", 75), ("SIGUSR1", 75), ("SIGHUP", 75), ("SIGINT", 130)]
)
def test_a_signal_to_the_group_saves_with_loader_workers(config, run, whole, capfd, name, code):
    path = config(workers=2)

    def work():
        signal.signal(getattr(signal, name), signal.SIG_DFL)  # as a shell starts it
        at_step(2, lambda: os.killpg(0, getattr(signal, name)))
        exits(path)

    assert code_of(work) == code
    reported = told(capfd)
    assert len(reported) == 1
    assert f"stopped by {name} after step" in reported[0]
    resumes_to_the_same(run(), whole, resumed_at=4)


def test_a_second_interrupt_ends_the_run_at_once(config, run, whole, capfd):
    path = config(workers=1, checkpoint_every=1)

    def twice():
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)

    def work():
        at_step(2, twice)
        exits(path)

    assert code_of(work) == 130
    assert told(capfd) == ["medclip-debias: stopped; run the same command again to resume."]
    resumes_to_the_same(run(), whole, resumed_at=2)


@pytest.mark.parametrize("name", ["SIGHUP", "SIGINT"])
def test_a_signal_that_whoever_starts_a_run_ignores_is_ignored(config, run, capfd, name):
    """As nohup and a shell's background jobs do."""
    path = config()

    def work():
        signal.signal(getattr(signal, name), signal.SIG_IGN)
        at_step(2, lambda: os.kill(os.getpid(), getattr(signal, name)))
        exits(path)

    assert code_of(work) == 0
    assert (run().out / "finished.json").is_file()


def test_a_run_whose_terminal_is_closed_saves(config, run, whole):
    """A terminal of its own in earnest, whose other end is closed while steps are taken."""
    path = config(steps=6, checkpoint_every=100)
    here, terminal = pty.openpty()

    def work():
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for number in range(3):
            os.dup2(terminal, number)
        os.close(terminal)
        torch.set_num_threads(1)
        at_step(2, lambda: (os.kill(parent, signal.SIGUSR2), time.sleep(1)))
        exits(path)

    parent, before = os.getpid(), signal.signal(signal.SIGUSR2, lambda *_: os.close(here))
    try:
        child = os.fork()
        if child == 0:  # pragma: no cover
            code = 1
            try:
                os.close(here)
                work()
            except SystemExit as end:
                code = int(end.code or 0)
            finally:
                os._exit(code)
        os.close(terminal)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 75
    finally:
        signal.signal(signal.SIGUSR2, before)
    resumes_to_the_same(run(), whole, resumed_at=4)


def test_spawned_workers_are_sheltered_while_they_start(config, run, capfd):
    path = config(workers=1)

    def work():
        multiprocessing.set_start_method("spawn", force=True)
        begin = workers_module.multiprocessing.active_children
        calls = []

        def and_signal():
            calls.append(0)
            if len(calls) == 2:  # the workers were started, and import for seconds now
                os.killpg(0, signal.SIGTERM)
            return begin()

        workers_module.multiprocessing.active_children = and_signal
        exits(path)

    assert code_of(work) == 75
    assert "stopped by SIGTERM after step 1 of" in capfd.readouterr().err


def test_a_signal_to_torchrun_s_group_saves(config, run, capfd):
    """The agent of torchrun in earnest; its processes are forked, which saves their imports."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    path = config(workers=1, steps=200, checkpoint_every=1000)

    def entry():
        torch.set_num_threads(1)
        at_step(3, lambda: os.environ["RANK"] == "0" and os.killpg(0, signal.SIGTERM))
        exits(path)

    def work():
        launch = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=2,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            start_method="fork",
            max_restarts=0,
            monitor_interval=0.2,
        )
        try:
            elastic_launch(launch, entry)()
        except SignalException:
            raise SystemExit(9) from None

    assert code_of(work) == 9
    assert "stopped by SIGTERM after step" in capfd.readouterr().err
    (saved,) = checkpoints(run().out / "checkpoints")
    assert 4 <= int(saved.stem[-8:]) < 200


# -------------------------------------------------------------------------------- whenever


def test_a_signal_during_the_first_imports_is_an_orderly_end(config):
    path = config()
    done = subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "medclip_debias", "train", path],
        cwd=REPO,
        env=os.environ | {"PYTHONPATH": str(REPO)},
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in done.stderr:  # from the second import of ours on
        if "medclip_debias.training.signals" in line:
            break
    time.sleep(0.02)
    done.send_signal(signal.SIGTERM)
    said = [line for line in done.stderr if not line.startswith("import time:")]
    assert done.wait(30) == 75
    assert len(said) == 1
    assert "stopped by SIGTERM before its first step" in said[0]


@pytest.mark.parametrize(
    ("place", "name"),
    [
        *(("settings", "SIGTERM"), ("set-up", "SIGUSR1")),
        *(("validation", "SIGTERM"), ("last save", "SIGUSR1")),
    ],
)
def test_a_signal_ends_as_saved_wherever_it_comes(config, run, capfd, monkeypatch, place, name):
    path = config(steps=2, validate_every=1, validate_images=8, checkpoint_every=100)

    def signalled(function):
        def first(*args, **options):
            os.kill(os.getpid(), getattr(signal, name))
            return function(*args, **options)

        return first

    def work():
        if place == "settings":
            validation.validator_of = signalled(validation.validator_of)
        elif place == "set-up":
            DualEncoder.create = signalled(DualEncoder.create)
        elif place == "validation":
            plain = validation.validator_of
            validation.validator_of = lambda *given: signalled(plain(*given))
        else:
            DualEncoder.save = signalled(DualEncoder.save)
        exits(path)

    assert code_of(work) == 75
    (reported,) = told(capfd)
    assert f"stopped by {name}" in reported
    begins = {"settings": 0, "set-up": 0, "validation": 1, "last save": 2}[place]
    if place == "last save":
        assert command(["train", path]) == 0
        assert "has finished" in capfd.readouterr().err
        return
    # A validation while resuming is that of the run that was never stopped.
    assert command(["train", path, "--json"]) == 0
    assert f'"resumed_at": {begins},' in capfd.readouterr().out


def test_a_signal_to_one_process_before_the_first_step_stops_all(config, capfd):
    path = config()

    def work():
        create = DualEncoder.create

        def and_signal(*args, **options):
            if os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGTERM)
            return create(*args, **options)

        DualEncoder.create = and_signal
        exits(path)

    assert in_processes(2, work) == [75, 75]
    assert capfd.readouterr().err.count("before its first step") == 1


def test_a_process_that_waits_for_the_others_still_hears_a_signal(config, capfd, monkeypatch):
    path = config()
    for name, value in (("RANK", 0), ("WORLD_SIZE", 2), ("LOCAL_RANK", 0), ("MASTER_PORT", 29817)):
        monkeypatch.setenv(name, str(value))

    def work():
        me = os.getpid()
        if os.fork() == 0:
            time.sleep(1.5)
            os.kill(me, signal.SIGTERM)
            os._exit(0)
        exits(path)

    assert code_of(work, limit=20) == 75
    assert "before its first step" in capfd.readouterr().err


# ---------------------------------------------------------------- dead and stopped processes


def worker():
    return multiprocessing.active_children()[0].pid


def test_a_killed_loader_worker_is_one_sentence(config, run, capfd):
    # More steps than are read ahead: some of its batches are still to be asked for.
    path = config(workers=2, steps=12)

    def work():
        at_step(3, lambda: os.kill(worker(), signal.SIGKILL))
        exits(path)

    assert code_of(work) == 2
    (reported,) = told(capfd)
    assert "process of the data loader was killed" in reported
    begun = int(checkpoints(run().out / "checkpoints")[-1].stem[-8:])
    whole = weights(train(run("whole", steps=12, checkpoint_every=100)).model)
    resumes_to_the_same(run(steps=12), whole, resumed_at=begun)


def test_a_loader_that_stands_still_ends_the_run(config, capfd):
    path = config(workers=2, steps=12, stall_minutes=0.02)

    def work():
        at_step(3, lambda: [os.kill(c.pid, signal.SIGSTOP) for c in active()])
        exits(path)

    active = multiprocessing.active_children
    assert code_of(work) == 2
    (reported,) = told(capfd)
    assert "The data loader has brought no batch for 0.02 minutes (train.stall_minutes)" in reported


def test_a_killed_run_leaves_no_worker_behind(config):
    path = config(workers=2)

    def work():
        at_step(2, lambda: os.kill(os.getpid(), signal.SIGKILL))
        exits(path)

    assert code_of(work) == -signal.SIGKILL


@pytest.mark.parametrize("stopped", [0, 1])
def test_a_stopped_process_ends_the_run(config, capfd, stopped):
    """The others say so and end; torchrun and srun then end the one that is stopped."""
    path = config(stall_minutes=0.03)

    def number(rank):
        return Path(path).with_name(f"process{rank}")

    def work():
        me, rank = os.getpid(), int(os.environ["RANK"])
        number(rank).write_text(str(me))
        if rank == stopped:
            at_step(3, lambda: (killed_after(int(number(1 - rank).read_text())), stop(me)))
        exits(path)

    def stop(me):
        os.kill(me, signal.SIGSTOP)

    def killed_after(other):
        me = os.getpid()
        if os.fork() == 0:
            while psutil.pid_exists(other) and psutil.Process(other).status() != "zombie":
                time.sleep(0.1)
            os.kill(me, signal.SIGKILL)
            os._exit(0)

    codes = in_processes(2, work)
    assert (codes[1 - stopped], codes[stopped]) == (2, -signal.SIGKILL)
    reported = capfd.readouterr().err
    assert reported.count("medclip-debias: ") == 1, reported
    assert "Another process of the run has not answered for 0.03 minutes" in reported


@pytest.mark.parametrize("killed", [0, 1])
def test_a_killed_process_of_the_run_is_one_sentence(config, run, killed):
    """Processes of their own: what torch's C++ prints is decided when torch is imported."""
    path = config(steps=2000, checkpoint_every=1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    shared |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "medclip_debias", "train", path, "--quiet"],
            env=os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    while not checkpoints(run().out / "checkpoints"):
        assert all(process.poll() is None for process in processes)
        time.sleep(0.1)
    processes[killed].kill()
    left = processes[1 - killed]
    _, reported = left.communicate(timeout=60)
    assert left.returncode == 2
    assert len(reported.splitlines()) == 1
    assert "Another process of the run ended without a word" in reported
    processes[killed].communicate()


def test_the_process_whose_data_stall_is_named(config, capfd):
    path = config(stall_minutes=0.03)

    def work():
        if os.environ["RANK"] == "1":
            from medclip_debias.data.loader import StepBatches

            read = StepBatches.__getitem__
            StepBatches.__getitem__ = lambda self, k: time.sleep(60) if k == 3 else read(self, k)
        exits(path)

    assert in_processes(2, work) == [2, 2]
    (reported,) = told(capfd)
    assert "The data loader of process 1 has brought no batch" in reported


def test_a_slow_run_is_no_stalled_one(run):
    """Each phase is shorter than the limit, all together are longer; so is the set-up."""
    slow = run(stall_minutes=0.01, steps=6)
    began = time.monotonic()
    train(slow, progress=lambda *_: time.sleep(0.2))
    assert time.monotonic() - began > 0.6


# ------------------------------------------------------------------------ what is too little


def small_shared_memory(size):
    """A small /dev/shm for this process alone, as Docker gives; False where that is forbidden."""
    libc = ctypes.CDLL(None, use_errno=True)
    private = 0x4000 | 0x40000  # MS_REC | MS_PRIVATE
    return (
        libc.unshare(0x00020000) == 0  # CLONE_NEWNS
        and libc.mount(b"none", b"/", None, private, None) == 0
        and libc.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, f"size={size}".encode()) == 0
    )


@pytest.mark.parametrize("beforehand", [True, False])
def test_too_little_shared_memory_is_one_sentence(config, capfd, beforehand):
    path = config(workers=2)

    def work():
        if not small_shared_memory("16k"):
            raise SystemExit(99)
        if not beforehand:
            workers_module.check_shared_memory = lambda _: None
        exits(path)

    code = code_of(work)
    if code == 99:
        pytest.skip("a mount of one's own is not permitted here")
    (reported,) = told(capfd)
    assert code == 2, reported
    assert "/dev/shm: " in reported
    assert "--shm-size=8g" in reported


@pytest.mark.parametrize("more", range(12, 40, 7))
def test_too_few_open_files_are_one_sentence_or_suffice(config, capfd, more):
    """Never a traceback, never a hang, wherever the limit strikes."""
    path = config(workers=2, steps=2)

    def work():
        begin = workers_module.more_open_files

        def lowered():
            begin()
            limit = len(list(Path("/proc/self/fd").iterdir())) + more
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

        workers_module.more_open_files = lowered
        exits(path)

    code = code_of(work)
    reported = told(capfd)
    if code:
        assert (code, len(reported)) == (2, 1), reported
        assert "open files" in reported[0]
    if more == 12:
        assert code == 2


def test_the_limit_of_open_files_is_raised_to_what_is_allowed(config):
    path = config(workers=1, steps=2)

    def work():
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
        few = highest + 9  # enough to read, and not for workers
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
        exits(path)

    assert code_of(work) == 0
