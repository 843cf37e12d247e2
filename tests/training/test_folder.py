"""The folder of a run: one run at a time, of one kind; a finished run is left alone."""

from __future__ import annotations

import os
import shutil
import signal

import pytest
import torch

from medclip_debias.cli import run as command
from medclip_debias.errors import UserError
from medclip_debias.training.checkpoint import (
    checkpoints,
    load_checkpoint,
    save_checkpoint,
)
from medclip_debias.training.train import train
from tests.training.conftest import flip, in_processes, train_until


@pytest.fixture(scope="module")
def done(run_in, tmp_path_factory):
    """A finished run of two steps: its settings, and a copy of its folder."""
    root = tmp_path_factory.mktemp("folder")
    settings = run_in(root, "tiny")(steps=2)
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


def test_a_finished_run_leaves_its_model_folder_alone(run):
    settings = run(steps=2)
    assert not train(settings).finished_before
    before = stamps(settings.out / "model")
    log = (settings.out / "metrics.csv").read_bytes()
    again = train(settings)
    assert again.finished_before
    assert (again.steps, again.resumed_at) == (2, 2)
    assert stamps(settings.out / "model") == before
    assert (settings.out / "metrics.csv").read_bytes() == log


@pytest.mark.parametrize("harm", ["damaged", "missing", "gone", "more", "unknown"])
def test_a_model_folder_that_is_not_as_it_was_written_is_written_again(finished, harm):
    settings = finished
    folder = settings.out / "model"
    before = {name: content for name, (_, content) in stamps(folder).items()}
    if harm == "damaged":
        flip(folder / "model.safetensors")
    elif harm == "missing":
        (folder / "tokenizer.json").unlink()
    elif harm == "gone":
        shutil.rmtree(folder)
    elif harm == "more":
        (folder / "peer.yaml").write_text("kind: other")
    else:
        (settings.out / "finished.json").write_text("[")
    assert not train(settings).finished_before
    assert {name: content for name, (_, content) in stamps(folder).items()} == before
    assert train(settings).finished_before


def test_a_run_that_starts_over_is_not_taken_for_finished(finished):
    """Killed between its last checkpoint and its model, beside the model of the run before."""
    settings = finished
    old = stamps(settings.out / "model")

    train_until(settings, 2, fresh=True)
    assert checkpoints(settings.out / "checkpoints")
    assert not train(settings).finished_before
    assert stamps(settings.out / "model") != old


# ------------------------------------------------------------------- one run at a time


@pytest.fixture
def training():
    """A function that trains in another process, up to a step, and there waits; its number."""
    children = []

    def start(settings, step=1):
        ready, tell = os.pipe()
        child = os.fork()
        if child == 0:  # pragma: no cover
            torch.set_num_threads(1)

            def wait(done, total, loss):
                if done == step:
                    os.write(tell, b".")
                    signal.pause()

            train(settings, progress=wait)
            os._exit(0)
        children.append(child)
        os.close(tell)
        assert os.read(ready, 1) == b"."
        os.close(ready)
        return child

    yield start
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def rows(settings):
    return (settings.out / "metrics.csv").read_text().splitlines()


def test_a_second_run_is_refused_while_the_first_trains(run, training):
    settings = run(steps=4)
    child = training(settings, step=2)
    before = (settings.out / "settings.yaml").read_bytes(), rows(settings)
    for second in (settings, run(steps=4, lr=0.5)):
        for fresh in (False, True):
            with pytest.raises(UserError, match=rf"another run \(process {child} on .*, since"):
                train(second, fresh=fresh)
    assert ((settings.out / "settings.yaml").read_bytes(), rows(settings)) == before
    assert len(checkpoints(settings.out / "checkpoints")) == 1


def test_of_several_processes_one_says_that_the_folder_is_taken(run, training, capfd):
    settings = run(steps=4)
    training(settings)

    def second():
        try:
            train(settings)
        except UserError as error:
            os.write(1, f"said: {error}".encode())
            raise SystemExit(2) from None

    assert in_processes(2, second) == [2, 2]
    assert capfd.readouterr().out.count("said: ") == 1


def test_the_verbs_that_write_beside_a_run_say_that_it_trains(run, training, capsys, tmp_path):
    settings = run(steps=4)
    training(settings)
    model = str(settings.out / "model")
    command(["evaluate", model, str(settings.prepared), "--out", str(tmp_path / "e")])
    said = capsys.readouterr().err
    assert said.count(f"{settings.out}: a run is training here (process ") == 1
    command(["report", str(settings.out)])
    assert "a run is training here" in capsys.readouterr().err
    command(["report", str(tmp_path)])
    assert "a run trains here" not in capsys.readouterr().err


# ------------------------------------------------------- settings and checkpoints are one


def test_checkpoints_of_a_run_with_other_settings_are_not_taken_up(finished, run):
    """As two runs in one folder left it, before there was a lock."""
    first, other = finished, run("other", steps=2, lr=0.5)
    train(other)
    mine = (first.out / "settings.yaml").read_text()
    (first.out / "settings.yaml").write_text((other.out / "settings.yaml").read_text())
    with pytest.raises(UserError, match=r"step_00000002\.pt: was written under other settings"):
        train(other.model_copy(update={"out": first.out}))
    (first.out / "settings.yaml").write_text(mine)
    assert train(first).finished_before


def test_a_checkpoint_trained_on_other_data_is_not_taken_up_unasked(finished):
    settings = finished
    folder = settings.out / "checkpoints"
    path = checkpoints(folder)[-1]
    state = load_checkpoint(path)
    save_checkpoint(folder, 2, state | {"data_hash": "0" * 64})
    with pytest.raises(UserError, match=r"trained on data with the hash 0000.*--allow-changed"):
        train(settings)
    assert train(settings, allow_changed_data=True).finished_before


# ------------------------------------------------------------------------- changed data


def test_data_changed_in_place_stops_the_run_before_it_writes(run, tmp_path):
    settings = run(steps=2)
    shutil.copytree(settings.prepared, tmp_path / "set")
    changed = settings.model_copy(update={"prepared": tmp_path / "set"})
    flip_all(tmp_path / "set" / "images.bin")
    with pytest.raises(UserError, match=r"images\.bin: was changed under an unchanged meta\.json"):
        train(changed, allow_changed_data=True)
    assert not settings.out.exists()


def flip_all(path):
    content = bytearray(path.read_bytes())
    path.write_bytes(bytes(byte ^ 1 for byte in content))
