"""The common runner: resumes, skips what is done, repeats exactly, speaks plainly."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

from medclip_debias.config import Settings
from medclip_debias.errors import UserError
from medclip_debias.experiments.experiment import Experiment, Shared, Summary
from medclip_debias.experiments.runner import plan, run_experiment
from medclip_debias.reporting.plots import panels
from medclip_debias.reporting.tables import Table


class RootSettings(Settings):
    """Numbers, and one step of Newton's method more or less."""

    numbers: tuple[float, ...] = (2.0, 3.0, 5.0, 7.0)
    steps: int = 6


def write_steps(content, folder):
    (folder / "steps").write_text(str(content["steps"]))


class Roots(Experiment):
    """Newton's square roots; cells of equal steps share a file."""

    name = "roots"
    title = "Square roots"
    settings_class = RootSettings

    def cells(self):
        return [{"number": n, "steps": self.settings.steps} for n in self.settings.numbers]

    def seconds(self, cell):
        return 0.5 * cell["steps"]

    def shared(self, cell):
        return Shared({"steps": cell["steps"]}, write_steps)

    def measure(self, cell):
        root = cell["number"]
        for _ in range(int((self.shared_folder(cell) / "steps").read_text())):
            root = (root + cell["number"] / root) / 2
        return {"root": root}

    def summary(self, rows):
        body = [[f"{row['number']:g}", f"{row['root']:.6f}"] for row in rows]
        return Summary(["They are roots."], [Table("Roots", ["number", "root"], body)], {"n": 1})

    def figure(self, rows):
        figure, (axes,) = panels(1)
        axes.plot([row["number"] for row in rows], [row["root"] for row in rows])
        return figure

    def command(self):
        return "roots"


@pytest.fixture
def roots(tmp_path: Path) -> Roots:
    return Roots(inputs=tmp_path / "inputs")


@pytest.mark.usefixtures("drawn")
def test_a_stopped_run_resumes_and_gives_what_an_uninterrupted_one_gives(
    tmp_path, roots, monkeypatch
):
    lines = []
    whole = run_experiment(roots, tmp_path / "whole", say=lines.append)
    assert lines == [
        "roots: 4 cells, 0 measured already, 1 input to make first, about 12 s for the rest "
        "with 1 worker"
    ]
    assert [row["root"] ** 2 for row in whole["rows"]] == pytest.approx([2, 3, 5, 7])
    calls, measure = [], Roots.measure

    def stop_at_third(self, cell):
        calls.append(cell)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(self, cell)

    monkeypatch.setattr(Roots, "measure", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        run_experiment(roots, tmp_path / "cut")
    assert len(list((tmp_path / "cut/cells").glob("*.json"))) == 2
    assert not (tmp_path / "cut/results.json").exists()
    rest = run_experiment(roots, tmp_path / "cut")
    assert len(calls) == 3 + len(whole["rows"]) - 2
    assert rest["rows"] == whole["rows"]
    plots = [(tmp_path / name / "figure.svg").read_bytes() for name in ("whole", "cut")]
    assert plots[0] == plots[1]


def test_what_is_measured_is_not_measured_again(tmp_path, roots):
    run_experiment(roots, tmp_path / "out")
    ahead = plan(roots, tmp_path / "out")
    assert (len(ahead.missing), ahead.seconds, ahead.inputs) == (0, 0, [])
    wider = Roots(RootSettings(numbers=(2, 3, 11, 13)), roots.inputs)
    assert len(plan(wider, tmp_path / "out").missing) == 2
    assert len(plan(Roots(RootSettings(steps=7), roots.inputs), tmp_path / "out").missing) == 4


def test_a_cell_that_is_listed_twice_is_measured_once(tmp_path, roots):
    twice = Roots(RootSettings(numbers=(2, 3, 2)), roots.inputs)
    lines = []
    results = run_experiment(twice, tmp_path / "out", say=lines.append)
    assert [row["root"] ** 2 for row in results["rows"]] == pytest.approx([2, 3, 2])
    assert lines[0].startswith("roots: 2 cells, 0 measured already, 1 input to make first, about 6")
    cells = [json.loads(path.read_text()) for path in (tmp_path / "out/cells").iterdir()]
    assert results["seconds"] == sum(cell["seconds"] for cell in cells)


def test_a_damaged_cell_is_named(tmp_path, roots):
    run_experiment(roots, tmp_path / "out")
    cell = sorted((tmp_path / "out/cells").glob("*.json"))[0]
    for content, words in (
        ("{", "cannot be read as JSON"),
        ("[]", "is not a JSON object"),
        ('{"cell": {}, "values": {}}', "lacks the key 'seconds'"),
    ):
        cell.write_text(content)
        with pytest.raises(UserError, match=f"{cell.name}: {words}.*; remove it"):
            run_experiment(roots, tmp_path / "out")


@pytest.mark.parametrize(("number", "measured"), [(3.0, 3), (2.0, 0)])
def test_a_cell_that_fails_does_not_keep_the_others_from_being_measured(
    tmp_path, roots, monkeypatch, number, measured
):
    """But the first: what fails first will fail everywhere."""
    measure = Roots.measure

    def fails(self, cell):
        if cell["number"] == number:
            raise UserError(f"{number} has no root.")
        return measure(self, cell)

    monkeypatch.setattr(Roots, "measure", fails)
    with pytest.raises(UserError, match=rf"{number} has no root"):
        run_experiment(roots, tmp_path / "out")
    assert len(list((tmp_path / "out").glob("cells/*.json"))) == measured
    assert not (tmp_path / "out/results.json").exists()


def test_cells_are_measured_in_processes_and_on_a_cluster_as_here(tmp_path, roots, monkeypatch):
    """A cluster is the executor's (tests/data); what goes to a worker and back is pickled."""
    here = run_experiment(roots, tmp_path / "here", workers=1)
    assert run_experiment(roots, tmp_path / "two", workers=2)["rows"] == here["rows"]

    def on_a_cluster(function, pieces, _=1, *, cluster=None, **__):
        assert cluster == "tcp://host:1"
        for piece in pieces:
            yield function(pickle.loads(pickle.dumps(piece)))

    monkeypatch.setattr("medclip_debias.experiments.runner.map_pieces", on_a_cluster)
    other = Roots(inputs=tmp_path / "other")
    there = run_experiment(other, tmp_path / "there", cluster="tcp://host:1")
    assert there["rows"] == here["rows"]
