"""Cells that another grid has measured: taken where they are the same, and counted where not."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from medclip_debias.cli import run
from medclip_debias.experiments import trainings
from medclip_debias.experiments.command import run_grid
from medclip_debias.settings_files import load_yaml
from medclip_debias.training.step import Trainer
from tests.experiments.test_trainings import METHODS, write_grid

pytestmark = pytest.mark.usefixtures("quick_judgement")
TWO = {name: METHODS[name] for name in ("CLIP", "its values shuffled")}


@pytest.fixture(scope="module")
def first(place, tmp_path_factory):
    """Folder of a grid of two methods, one seed."""
    folder = tmp_path_factory.mktemp("first")
    path = write_grid(folder / "first.yaml", methods=TWO)
    words = ["experiment", str(path), *place.words(seeds="[0]", seconds_per_step=0.1)]
    assert run([*words, "--out", str(folder / "out")]) == 0
    return folder / "out"


@pytest.fixture
def copied(first, tmp_path):
    """A copy of it, to be damaged."""
    return shutil.copytree(first, tmp_path / "other")


@pytest.fixture
def words(place, tmp_path):
    """The command of another grid: the same runs under other names, in a folder of its own."""
    methods = {f"my {name}": own for name, own in TWO.items()}
    path = write_grid(tmp_path / "second.yaml", methods=methods, baseline="my CLIP")
    given = place.words(seeds="[0]", seconds_per_step=0.1)
    return ["experiment", str(path), *given, "--out", str(tmp_path / "out")]


def never(monkeypatch):
    def measured(self, cell):
        raise AssertionError("measured again")

    monkeypatch.setattr(trainings.Trainings, "measure", measured)


def rows(folder):
    """Content of the results that must not depend on names and places."""
    found = json.loads((folder / "results.json").read_text())["rows"]
    return [(row["metrics"], row["train"], row["seed"]) for row in found]


def test_cells_of_another_grid_are_taken_whatever_they_are_called(
    first, words, tmp_path, monkeypatch, capsys
):
    never(monkeypatch)
    assert run([*words, "--reuse", str(first)]) == 0
    assert f"{first}: 2 cells taken from there." in capsys.readouterr().err
    out = tmp_path / "out"
    assert rows(out) == rows(first)
    for note in (out / "cells").iterdir():
        content = json.loads(note.read_text())
        assert content["taken_from"] == str(first)
        evaluated = out / "runs" / content["values"]["folder"]
        assert (evaluated / "results.json").is_file()
        assert evaluated.parent.name.startswith("my-")
        settings = load_yaml(evaluated.parent / "run.yaml")
        assert settings["out"] == str(evaluated.parent)
    # What is there is not taken twice.
    assert run([*words, "--reuse", str(first)]) == 0
    assert f"{first}: 0 cells taken from there." in capsys.readouterr().err


def test_copying_is_progress(first, words, tmp_path, capsys):
    _, grid, *given, _, out = words
    shown = []
    more = {"out": Path(out), "planned": True, "others": [first]}
    run_grid(Path(grid), given, **more, progress=lambda *place: shown.append(place))
    assert shown == [(1, 2), (2, 2)]


def test_a_cell_that_was_taken_is_evaluated_otherwise_without_training(
    first, words, tmp_path, monkeypatch, capsys
):
    assert run([*words, "--plan", "--reuse", str(first)]) == 0
    assert "missing: 0" in capsys.readouterr().out

    def stepped(self, *_, **__):
        raise AssertionError("trained again")

    monkeypatch.setattr(Trainer, "step", stepped)
    assert run([*words, "evaluate.split=validate"]) == 0
    assert len(list((tmp_path / "out/runs").iterdir())) == 2


def test_what_lost_its_evaluation_or_has_begun_here_is_measured_here_and_said(
    copied, words, tmp_path, monkeypatch, capsys
):
    lost, begun = sorted((copied / "runs").iterdir())
    shutil.rmtree(next(lost.glob("evaluate_*")))
    (tmp_path / "out/runs" / f"my_{begun.name[-10:]}" / "checkpoints").mkdir(parents=True)
    assert run([*words, "--plan", "--reuse", str(copied)]) == 0
    said = capsys.readouterr()
    assert (
        "0 cells taken from there; 1 have lost their evaluation and are measured here; "
        "1 have begun here already and go on here." in said.err
    )
    assert "missing: 2" in said.out


@pytest.mark.parametrize("damage", ["{", '{"cell": {}, "values": [], "seconds": 1}'])
def test_a_folder_without_cells_and_a_damaged_cell_are_one_sentence(
    copied, words, tmp_path, capsys, damage
):
    assert run([*words, "--reuse", str(tmp_path)]) == 2
    assert "holds no cells; give a folder of 'experiment' in --reuse." in capsys.readouterr().err
    for note in (copied / "cells").iterdir():
        note.write_text(damage)
    assert run([*words, "--reuse", str(copied)]) == 2
    (said,) = [s for s in capsys.readouterr().err.splitlines() if s.startswith("medclip-debias")]
    assert "leave it out" in said
    assert not list((tmp_path / "out").rglob("*.json"))


def test_a_disk_that_is_full_is_one_sentence_and_leaves_nothing(
    first, words, tmp_path, monkeypatch, capsys
):
    def full(source, target, **_):
        (target / "model").mkdir()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shutil, "copytree", full)
    assert run([*words, "--reuse", str(first)]) == 2
    assert "cannot be copied (No space left on device); mend that" in capsys.readouterr().err
    assert [path for path in (tmp_path / "out").rglob("*") if path.name != "runs"] == []
