"""Signals to a whole process group, dead or stopped processes, and what a machine is short of."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import psutil
import pytest

from medclip_debias.cli import run as command
from medclip_debias.evaluation import validation
from medclip_debias.models.dual_encoder import DualEncoder
from medclip_debias.training import distributed
from medclip_debias.training.checkpoint import checkpoints
from medclip_debias.training.step import Trainer
from medclip_debias.training.train import train
from tests.training.conftest import (
    exit_code,
    exit_codes,
    fork,
    free_port,
    in_processes,
    same,
    wait_until,
    weights,
)

REPO = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def signals_of_a_terminal():
    """Signals as a shell leaves them to a command that it waits for; its jobs ignore two."""
    plain = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in plain.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def at_step(number, act):
    """Make ``act`` happen before the step ``number`` of this process."""
    step = Trainer.step

    def and_act(self, now, *args, **options):
        if now == number:
            act()
        return step(self, now, *args, **options)

    Trainer.step = and_act


def signalled(function, name):
    """``function``, before which a signal comes to this process."""

    def first(*args, **options):
        os.kill(os.getpid(), getattr(signal, name))
        return function(*args, **options)

    return first


def start(*words):
    """The verb in this forked process, which ends with its exit code."""
    raise SystemExit(command(["train", *words]))


def sentences(capfd):
    """What a run wrote on standard error, but for what trains and the lines of its log."""
    lines = capfd.readouterr().err.splitlines()
    return [line for line in lines if not re.match(r"training |trainable |\d{4}-\d\d-\d\d ", line)]


@pytest.fixture
def ended(config, capfd):
    """A function: exit code and sentences of the verb in which ``act`` happens before a step.

    In ``world`` processes, if there are several, it happens in ``rank``; ``first`` before all.
    """

    def run(act=None, at=2, *, first=None, world=1, rank=None, **settings):
        path = config(**settings)

        def work():
            if rank in (None, int(os.environ.get("RANK", 0))):
                if first:
                    first()
                if act:
                    at_step(at, act)
            start(path)

        codes = in_processes(world, work) if world > 1 else exit_code(work)
        return codes, sentences(capfd)

    return run


@pytest.fixture(scope="module")
def whole(run_in, tmp_path_factory):
    """The weights of a run that never stopped."""
    run = run_in(tmp_path_factory.mktemp("signals"))
    return weights(train(run(checkpoint_every=100)).model)


def assert_resumes(settings, whole, at):
    """The interrupted run ends in the weights of one that never stopped."""
    result = train(settings)
    assert result.resumed_at == at
    assert same(weights(result.model), whole)


# ---------------------------------------------------------------------------------- signals


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 75), ("SIGINT", 130)])
def test_a_signal_to_the_group_saves_with_loader_threads(ended, run, whole, name, code):
    number = getattr(signal, name)
    as_a_shell = lambda: signal.signal(number, signal.SIG_DFL)  # noqa: E731
    status, (sentence,) = ended(lambda: os.killpg(0, number), first=as_a_shell, workers=2)
    assert status == code
    assert f"stopped by {name} after step" in sentence
    assert_resumes(run(), whole, at=4)


def test_a_second_interrupt_ends_the_run_at_once(ended, run, whole):
    twice = lambda: [os.kill(os.getpid(), signal.SIGINT) for _ in range(2)]  # noqa: E731
    sentence = "medclip-debias: stopped; run the same command again to resume."
    assert ended(twice, workers=1, checkpoint_every=1) == (130, [sentence])
    assert_resumes(run(), whole, at=2)


def test_a_signal_that_whoever_starts_a_run_ignores_is_ignored(ended, run):
    """As nohup does."""
    nohup = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
    code, _ = ended(lambda: os.kill(os.getpid(), signal.SIGHUP), first=nohup)
    assert code == 0
    assert (run().out / "finished.json").is_file()


def test_a_run_whose_terminal_is_closed_saves(config, run, whole):
    """A terminal of its own in earnest, whose other end is closed while steps are taken."""
    path = config(checkpoint_every=100)
    here, terminal = pty.openpty()
    parent, before = os.getpid(), signal.signal(signal.SIGUSR2, lambda *_: os.close(here))

    def work():
        os.close(here)
        if os.fork():  # the leader of a group cannot open a session
            raise SystemExit(os.waitstatus_to_exitcode(os.wait()[1]))
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
        for number in range(3):
            os.dup2(terminal, number)
        os.close(terminal)
        at_step(2, lambda: (os.kill(parent, signal.SIGUSR2), time.sleep(0.3)))
        start(path)

    try:
        child = fork(work)
        os.close(terminal)
        assert exit_codes([child]) == [75]
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert_resumes(run(), whole, at=4)


def test_a_signal_to_torchrun_s_group_saves(config, run, capfd):
    """The agent of torchrun in earnest; its processes are forked, which saves their imports."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    path = config(workers=1, steps=200, checkpoint_every=1000)

    def entry():
        at_step(3, lambda: os.environ["RANK"] == "0" and os.killpg(0, signal.SIGTERM))
        start(path)

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

    assert exit_code(work) == 9
    assert "stopped by SIGTERM after step" in capfd.readouterr().err
    (saved,) = checkpoints(run().out / "checkpoints")
    assert 4 <= int(saved.stem[-8:]) < 200


def test_a_signal_during_the_first_imports_is_an_orderly_end(config, tmp_path):
    path, lines = config(), tmp_path / "stderr"
    with lines.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-X", "importtime", "-m", "medclip_debias", "train", path],
            cwd=REPO,
            env=os.environ | {"PYTHONPATH": str(REPO)},
            stderr=stderr,
        )
    try:
        wait_until(lambda: "medclip_debias.training.signals" in lines.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 75
    finally:
        process.kill()
    stderr = lines.read_text().splitlines()
    (sentence,) = [line for line in stderr if not line.startswith("import time:")]
    assert "stopped by SIGTERM before its first step" in sentence


@pytest.mark.parametrize(
    ("place", "name", "steps"),
    [("set-up", "SIGUSR1", 0), ("validation", "SIGTERM", 1), ("last save", "SIGUSR1", 2)],
)
def test_a_signal_ends_as_saved_wherever_it_comes(config, capfd, place, name, steps):
    path = config(steps=2, validate_every=1, validate_images=8, checkpoint_every=100)

    def work():
        if place == "set-up":
            DualEncoder.create = signalled(DualEncoder.create, name)
        elif place == "validation":
            plain = validation.validator_of
            validation.validator_of = lambda *args: signalled(plain(*args), name)
        else:
            DualEncoder.save = signalled(DualEncoder.save, name)
        start(path)

    assert exit_code(work) == 75
    (sentence,) = sentences(capfd)
    assert f"stopped by {name}" in sentence
    assert command(["train", path, "--json"]) == 0
    output = capfd.readouterr()
    if place == "last save":
        assert "has finished" in output.err
    else:
        assert f'"resumed_at": {steps},' in output.out


def test_a_signal_to_one_process_before_the_first_step_stops_all(ended):
    def signal_set_up():
        DualEncoder.create = signalled(DualEncoder.create, "SIGTERM")

    codes, (sentence,) = ended(first=signal_set_up, world=2, rank=1)
    assert codes == [75, 75]
    assert "before its first step" in sentence


def test_a_process_that_waits_for_the_others_still_hears_a_signal(config, capfd, monkeypatch):
    path = config()
    names = {"RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "MASTER_PORT": free_port()}
    for name, value in names.items():
        monkeypatch.setenv(name, str(value))
    child = fork(lambda: start(path))
    time.sleep(0.5)
    os.kill(child, signal.SIGTERM)
    assert exit_codes([child], limit=20) == [75]
    assert "before its first step" in capfd.readouterr().err


# ---------------------------------------------------------------- dead and stopped processes


@pytest.fixture
def short_patience(monkeypatch):
    """Processes wait for a second for what another one has to say, and not for five."""
    monkeypatch.setattr(distributed, "_PATIENCE", 1.0)


def has_ended(pid):
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # and its parent knows it already
        return True


def test_a_stopped_process_ends_the_run(config, capfd, tmp_path, short_patience):
    """The others say so and end; torchrun and srun then end the one that is stopped."""
    path = config(stall_minutes=0.03)

    def work():
        me, rank = os.getpid(), os.environ["RANK"]
        if rank == "1":
            (tmp_path / "other").write_text(str(me))
        else:
            at_step(3, lambda: stop(me, int((tmp_path / "other").read_text())))
        start(path)

    def stop(me, other):
        if os.fork() == 0:
            wait_until(lambda: has_ended(other))
            os.kill(me, signal.SIGKILL)
            os._exit(0)
        os.kill(me, signal.SIGSTOP)

    assert in_processes(2, work) == [-signal.SIGKILL, 2]
    stderr = capfd.readouterr().err
    assert stderr.count("medclip-debias: ") == 1, stderr
    assert "Another process of the run has not answered for 0.03 minutes" in stderr


@pytest.mark.parametrize(("world", "killed"), [(2, 0), (3, 2)])
def test_a_killed_process_of_the_run_is_one_sentence(ended, world, killed, short_patience):
    kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    codes, lines = ended(kill, 3, world=world, rank=killed, steps=200, batch_size=6)
    assert codes == [-signal.SIGKILL if rank == killed else 2 for rank in range(world)]
    (sentence,) = [line for line in lines if line.startswith("medclip-debias: ")]
    assert "Another process of the run ended unexpectedly" in sentence


def test_the_process_whose_data_stall_is_named(ended):
    def stall():
        from medclip_debias.data.loader import StepBatches

        read = StepBatches.__getitem__
        StepBatches.__getitem__ = lambda self, k: time.sleep(60) if k == 3 else read(self, k)

    codes, (sentence,) = ended(first=stall, world=2, rank=1, workers=1, stall_minutes=0.03)
    assert codes == [2, 2]
    assert "The data loader of process 1 has delivered no batch for 0.03 minutes" in sentence


def test_a_slow_run_is_no_stalled_one(run):
    """Each phase is shorter than the limit, all together are longer; so is the set-up."""
    began = time.monotonic()
    train(run(stall_minutes=0.005), progress=lambda *_: time.sleep(0.1))
    assert time.monotonic() - began > 0.3
