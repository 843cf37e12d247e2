"""The folder of a run: one run at a time, of one kind; a finished run is left alone."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import signal
import time

import pytest

from medclip_debias.cli import run as command
from medclip_debias.errors import UserError
from medclip_debias.training import lock
from medclip_debias.training.checkpoint import checkpoints
from medclip_debias.training.lock import NAME, holder_of, locked
from medclip_debias.training.train import train
from tests.training.conftest import LOSS, flip, fork, train_until, wait_until


@pytest.fixture(autouse=True)
def short_patience(monkeypatch):
    """A second run waits for a tenth of a second for the first, and not for one."""
    monkeypatch.setattr(lock, "_PATIENCE", 0.1)


@pytest.fixture(scope="module")
def done(run_in, tmp_path_factory):
    """A finished run of two steps: its settings, and a copy of its folder."""
    root = tmp_path_factory.mktemp("folder")
    settings = run_in(root)(steps=2)
    train(settings)
    shutil.copytree(settings.out, root / "copy")
    return settings, root / "copy"


@pytest.fixture
def finished(done):
    """Settings of a finished run, whose folder is as it was left."""
    settings, copy = done
    shutil.rmtree(settings.out)
    shutil.copytree(copy, settings.out)
    return settings


def stamps(folder):
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_a_finished_run_leaves_its_model_folder_alone(finished):
    before = stamps(finished.out / "model")
    rows = (finished.out / "metrics.csv").read_bytes()
    again = train(finished)
    assert again.finished_before
    assert (again.steps, again.resumed_at) == (2, 2)
    assert stamps(finished.out / "model") == before
    assert (finished.out / "metrics.csv").read_bytes() == rows


@pytest.mark.parametrize("harm", ["damaged", "more", "unknown"])
def test_a_model_folder_that_is_not_as_it_was_written_is_written_again(finished, harm):
    folder = finished.out / "model"
    before = {name: content for name, (_, content) in stamps(folder).items()}
    if harm == "damaged":
        flip(folder / "model.safetensors")
    elif harm == "more":
        (folder / "peer.yaml").write_text("kind: other")
    else:
        (finished.out / "finished.json").write_text("[")
    assert not train(finished).finished_before
    assert {name: content for name, (_, content) in stamps(folder).items()} == before
    assert train(finished).finished_before


def test_a_run_that_starts_over_is_not_taken_for_finished(finished):
    """Killed between its last checkpoint and its model, beside the model of the run before."""
    old = stamps(finished.out / "model")
    train_until(finished, 2, fresh=True)
    assert checkpoints(finished.out / "checkpoints")
    assert not train(finished).finished_before
    assert stamps(finished.out / "model") != old


# ------------------------------------------------------- settings and checkpoints are one


def test_a_run_with_other_settings_does_not_continue(finished, run):
    other = run("other", steps=2, lr=0.5, seed=5, warmup_steps=1, weight_decay=0.2, ema=0.5)
    with pytest.raises(UserError, match=r"\((train\.\w+, ){3}train\.\w+ and 1 more\)"):
        train(other.model_copy(update={"out": finished.out}))
    train(other)
    shutil.rmtree(finished.out / "checkpoints")
    shutil.copytree(other.out / "checkpoints", finished.out / "checkpoints")
    with pytest.raises(UserError, match=r"other settings \(train\."):
        train(finished)


def test_changed_data_is_refused_unless_forced_and_half_changed_data_always(finished, tmp_path):
    copy = tmp_path / "changed"
    shutil.copytree(finished.prepared, copy)
    changed = finished.model_copy(update={"prepared": copy})
    meta = json.loads((copy / "meta.json").read_text())
    other = meta | {"content_hash": "0000" + meta["content_hash"][4:]}
    (copy / "meta.json").write_text(json.dumps(other))
    with pytest.raises(UserError, match=r"now has 0000.*--allow-changed-data"):
        train(changed)
    assert train(changed, allow_changed_data=True).finished_before
    (copy / "meta.json").write_text(json.dumps(meta))
    pixels = copy / "images.bin"
    pixels.write_bytes(bytes(byte ^ 1 for byte in pixels.read_bytes()))
    begun = changed.model_copy(update={"out": tmp_path / "begun"})
    with pytest.raises(UserError, match=r"images\.bin: was changed under an unchanged meta\.json"):
        train(begun, allow_changed_data=True)
    assert not begun.out.exists()


def test_what_was_learned_of_other_data_is_said(run, tmp_path):
    """The model's provenance named the data of the last steps alone."""
    begun = run(steps=4, checkpoint_every=2, loss=LOSS)
    train_until(begun, 2)
    copy = tmp_path / "changed"
    shutil.copytree(begun.prepared, copy)
    meta = json.loads((copy / "meta.json").read_text())
    (copy / "meta.json").write_text(json.dumps(meta | {"content_hash": "0" * 64}))
    warnings = []
    changed = begun.model_copy(update={"prepared": copy})
    model = train(changed, allow_changed_data=True, warn=warnings.append).model
    assert "numbers of each study by its place" in warnings[0]
    provenance = json.loads((model / "config.json").read_text())["provenance"]
    assert provenance["earlier_data_hashes"] == [meta["content_hash"]]


# ------------------------------------------------------------------- one run at a time


@pytest.fixture
def forked():
    """A function that begins something in another process, killed in the end; its number."""
    children = []

    def start(work, ready):
        children.append(fork(work))
        wait_until(ready)
        return children[-1]

    def kill():
        while children:
            child = children.pop()
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    start.kill = kill
    yield start
    kill()


def test_a_second_run_is_refused_while_the_first_trains_and_the_verbs_beside_it_say_so(
    run, forked, capsys, tmp_path
):
    settings, mark = run(steps=4), tmp_path / "mark"

    def wait(done, *_):
        if done == 2:
            mark.touch()
            time.sleep(60)

    child = forked(lambda: train(settings, progress=wait), mark.exists)
    names = ("settings.yaml", "metrics.csv")
    before = [(settings.out / name).read_bytes() for name in names]
    for second in (settings, run(steps=4, lr=0.5)):
        with pytest.raises(UserError, match=rf"another run \(process {child} on .*, since"):
            train(second, fresh=True)
    assert [(settings.out / name).read_bytes() for name in names] == before
    assert len(checkpoints(settings.out / "checkpoints")) == 1
    capsys.readouterr()
    model, prepared = str(settings.out / "model"), str(settings.prepared)
    command(["evaluate", model, prepared, "--out", str(tmp_path / "e")])
    assert capsys.readouterr().err.count("a run is training here (process ") == 1
    command(["report", str(settings.out)])
    assert "a run is training here" in capsys.readouterr().err


def held(out):
    """Hold a folder, with a child of its own."""
    with locked(out):
        if os.fork() != 0:
            (out.parent / "mark").touch()
        time.sleep(5)


def test_what_a_killed_process_held_is_free_at_once(tmp_path, forked):
    out = tmp_path / "run"
    forked(lambda: held(out), (tmp_path / "mark").exists)
    forked.kill()
    assert (out / NAME).is_file()
    assert holder_of(out) is None
    began = time.monotonic()
    with locked(out):
        assert time.monotonic() - began < 1
        assert f"process {os.getpid()} on " in holder_of(out)
        with pytest.raises(UserError, match=f"process {os.getpid()} .* trains in this folder"):
            locked(out).__enter__()
        assert f"process {os.getpid()} on " in holder_of(out)
    assert list(out.iterdir()) == []


def test_a_disk_without_locks_is_guarded_by_the_file(tmp_path, monkeypatch, forked):
    """As Lustre mounted without `flock`, whose kernel answers ENOSYS."""

    def none(*_):
        raise OSError(errno.ENOSYS, "no locks")

    monkeypatch.setattr(fcntl, "flock", none)
    out = tmp_path / "run"
    forked(lambda: held(out), (tmp_path / "mark").exists)
    with pytest.raises(UserError, match=r"trains in this folder right now \(if none does, remove"):
        locked(out).__enter__()
    forked.kill()
    with locked(out):  # its machine knows that it is gone
        pass


def test_a_damaged_record_is_no_matter(tmp_path):
    (tmp_path / NAME).write_bytes(b"{rubbish")
    with locked(tmp_path):
        pass
    assert not (tmp_path / NAME).exists()
