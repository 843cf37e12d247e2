"""The common runner: resumes, skips what is done, repeats exactly, speaks plainly."""

from __future__ import annotations

import json

import pytest

from medclip_debias.cli import run
from medclip_debias.errors import UserError
from medclip_debias.studies.runner import _joined, plan, run_named, run_study
from medclip_debias.studies.study import find_study, studies

SMALL = ["starts=4", "angles=401", "rare=[0.01, 0.1]", "temperatures=[0.05, 0.1]"]


@pytest.fixture
def settings():
    kind = find_study("fine-grained")
    return kind.settings_class(starts=4, angles=401, rare=(0.01, 0.1), temperatures=(0.05, 0.1))


def test_a_stopped_run_goes_on_and_gives_what_an_uninterrupted_one_gives(
    tmp_path, settings, monkeypatch
):
    whole = run_study("fine-grained", tmp_path / "whole", settings=settings)
    kind, calls = find_study("fine-grained"), []
    measure = kind.measure

    def stop_at_third(self, cell):
        calls.append(cell)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return measure(self, cell)

    monkeypatch.setattr(kind, "measure", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        run_study("fine-grained", tmp_path / "cut", settings=settings)
    assert len(list((tmp_path / "cut/cells").glob("*.json"))) == 2
    assert not (tmp_path / "cut/results.json").exists()
    rest = run_study("fine-grained", tmp_path / "cut", settings=settings)
    assert len(calls) == 3 + len(whole["rows"]) - 2
    assert rest["rows"] == whole["rows"]
    figures = [(tmp_path / name / "figure.svg").read_bytes() for name in ("whole", "cut")]
    assert figures[0] == figures[1]


def test_what_is_measured_is_not_measured_again(tmp_path, settings):
    run_study("fine-grained", tmp_path, settings=settings)
    study = find_study("fine-grained")(settings)
    ahead = plan(study, tmp_path)
    assert (len(ahead.missing), ahead.seconds) == (0, 0)
    wider = settings.model_copy(update={"rare": (0.01, 0.02, 0.1)})
    assert len(plan(find_study("fine-grained")(wider), tmp_path).missing) == 2


def test_processes_give_the_same_rows(tmp_path, settings):
    one = run_study("fine-grained", tmp_path / "one", settings=settings, workers=1)
    two = run_study("fine-grained", tmp_path / "two", settings=settings, workers=2)
    assert one["rows"] == two["rows"]


def test_predicted_time_is_said_first(tmp_path, settings):
    said = []
    run_study("fine-grained", tmp_path, settings=settings, say=said.append)
    assert "0 measured already" in said[0]


def test_a_damaged_cell_is_named(tmp_path, settings):
    run_study("fine-grained", tmp_path, settings=settings)
    cell = sorted((tmp_path / "cells").glob("*.json"))[0]
    cell.write_text("{")
    with pytest.raises(UserError, match=f"{cell.name}: cannot be read; remove it"):
        run_study("fine-grained", tmp_path, settings=settings)


def test_settings_come_as_words(tmp_path):
    found = run_named("fine-grained", tmp_path, words=SMALL, quick=True)
    assert found["settings"]["rare"] == [0.01, 0.1]
    with pytest.raises(UserError, match="did you mean 'starts'"):
        run_named("fine-grained", tmp_path, words=["start=4"])


def test_the_verb_lists_runs_and_refuses(tmp_path, capsys):
    assert run(["study", "--list", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(studies())
    assert run(["study", "fine-grained", *SMALL, "--out", str(tmp_path / "s")]) == 0
    assert "finding: Example 1" in capsys.readouterr().out
    page = (tmp_path / "s/page.md").read_text()
    assert "## What the figures say" in page
    assert (tmp_path / "s/figure.png").stat().st_size > 10_000
    assert run(["study", "fine-graned"]) == 2
    assert "did you mean 'fine-grained'" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert run(["study", "fine-grained", "--quick", "--out", str(tmp_path / "file")]) == 2


@pytest.mark.parametrize("name", sorted(studies()))
def test_every_study_says_what_it_is(name):
    kind = studies()[name]
    assert kind.title
    assert kind.source
    assert kind.about.strip()
    assert kind(kind.quick()).cells()
    cells = kind().cells()
    assert len({json.dumps(cell, sort_keys=True) for cell in cells}) == len(cells)


def test_publishing_puts_page_and_figure_into_the_docs(tmp_path, capsys):
    docs = tmp_path / "docs"
    docs.mkdir()
    words = ["study", "fine-grained", *SMALL, "--quick", "--out", str(tmp_path / "out")]
    assert run([*words, "--publish", str(docs)]) == 0
    assert (docs / "fine-grained.md").read_text() == (tmp_path / "out/page.md").read_text()
    assert (docs / "fine-grained.svg").is_file()
    assert run([*words, "--publish", str(tmp_path / "none")]) == 2
    assert "is not a folder" in capsys.readouterr().err


def test_what_is_measured_does_not_take_the_place_of_a_setting():
    row = _joined({"loss": {"kind": "infonce"}, "seed": 1}, {"loss": 2.5, "auc": 0.8})
    assert row == {"loss": {"kind": "infonce"}, "seed": 1, "measured loss": 2.5, "auc": 0.8}


def test_the_settings_of_a_run_are_a_file_that_repeats_it(tmp_path):
    words = ["study", "fine-grained", *SMALL, "--out", str(tmp_path / "a")]
    assert run(words) == 0
    config = str(tmp_path / "a" / "settings.yaml")
    assert run(["study", "fine-grained", "--config", config, "--out", str(tmp_path / "b")]) == 0
    first, again = (json.loads((tmp_path / n / "results.json").read_text()) for n in "ab")
    assert again["settings"] == first["settings"]
    assert again["rows"] == first["rows"]
