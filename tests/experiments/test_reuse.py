"""Cells that another grid has measured: taken where they are the same, and counted where not."""

from __future__ import annotations

import errno
import json
import os
import shutil

import pytest

from medclip_debias.cli import run
from medclip_debias.experiments import trainings
from medclip_debias.settings_files import load_yaml
from medclip_debias.training.step import Trainer
from tests.experiments.conftest import TWO, measured, never, write_grid

pytestmark = pytest.mark.usefixtures("quick_judgement")


@pytest.fixture
def copied(done, tmp_path):
    """A copy of the grid that has been run, to be damaged."""
    return shutil.copytree(done, tmp_path / "other")


@pytest.fixture
def words(place, tmp_path):
    """The command of another grid: the same runs under other names, in a folder of its own."""
    methods = {f"my {name}": own for name, own in TWO.items()}
    path = write_grid(tmp_path / "second.yaml", methods=methods, baseline="my CLIP")
    return ["experiment", str(path), *place.words(seeds="[0]"), "--out", str(tmp_path / "out")]


def test_cells_of_another_grid_are_taken_whatever_they_are_called(
    done, words, tmp_path, monkeypatch, capsys
):
    with monkeypatch.context() as patched:
        patched.setattr(trainings.Trainings, "measure", never)
        for count in (2, 0):  # what is there is not taken twice
            assert run([*words, "--reuse", str(done)]) == 0
            assert f"{done}: {count} cells taken from there." in capsys.readouterr().err
    out = tmp_path / "out"
    assert measured(out) == measured(done)
    assert json.loads((out / "results.json").read_text())["seconds"] == 0  # of measuring here
    for note in (out / "cells").iterdir():
        content = json.loads(note.read_text())
        assert content["taken_from"] == str(done)
        evaluated = out / "runs" / content["values"]["folder"]
        assert (evaluated / "results.json").is_file()
        assert evaluated.parent.name.startswith("my-")
        assert load_yaml(evaluated.parent / "run.yaml")["out"] == str(evaluated.parent)
    monkeypatch.setattr(Trainer, "step", never)  # evaluated otherwise without training
    assert run([*words, "evaluate.split=validate"]) == 0
    assert len(list((out / "runs").iterdir())) == 2


def test_what_lost_its_evaluation_or_has_begun_here_is_measured_here_and_said(
    copied, words, tmp_path, capsys
):
    lost, begun = (next((copied / "runs").glob(f"{n}_seed0_*")) for n in ("CLIP", "its-values-*"))
    shutil.rmtree(next(lost.glob("evaluate_*")))
    (tmp_path / "out/runs" / f"my_{begun.name[-10:]}" / "checkpoints").mkdir(parents=True)
    assert run([*words, "--plan", "--reuse", str(copied)]) == 0
    printed = capsys.readouterr()
    assert (
        "0 cells taken from there; 1 have lost their evaluation and are measured here; "
        "1 were started here before and continue here." in printed.err
    )
    assert "missing: 2" in printed.out


def test_a_folder_without_cells_a_damaged_cell_and_a_full_disk_are_one_sentence(
    copied, words, tmp_path, monkeypatch, capsys
):
    def full(source, target, **_):
        (target / "model").mkdir()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def sentence(folder):
        assert run([*words, "--reuse", str(folder)]) == 2
        assert [path for path in (tmp_path / "out").rglob("*") if path.name != "runs"] == []
        return capsys.readouterr().err

    assert "holds no cells; give a folder of 'experiment' in --reuse." in sentence(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copytree", full)
        assert "cannot be copied (No space left on device); fix that" in sentence(copied)
    for note in (copied / "cells").iterdir():
        note.write_text('{"cell": {}, "values": [], "seconds": 1}')
    assert "leave it out" in sentence(copied)
