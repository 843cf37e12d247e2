"""The verb `study` and `python scripts/studies`: found, listed, run, published, refused."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from commands import run_script
from medclip_debias.cli import experiments as verbs
from medclip_debias.cli import run
from studies import eta_table, flip_claims, pretrain_trunk
from studies.command import read_cells
from studies.study import STUDIES

REPO = Path(__file__).parents[2]
SMALL = ["starts=4", "angles=401", "rare=[0.01, 0.1]", "temperatures=[0.05, 0.1]"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fine-graned"], "did you mean 'fine-grained'"),
        (["fine-grained", "start=4"], "did you mean 'starts'"),
        (["fine-grained", "starts=many"], "must be like 200"),
    ],
)
def test_what_no_study_has_is_refused(words, said, capsys):
    assert run(["study", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(STUDIES.all()))
def test_every_cell_of_every_study_is_plain_and_distinct(name):
    kind = STUDIES.all()[name]
    assert min(map(len, (kind.title, kind.source, kind.about))) > 5
    for settings in (kind.usual, kind.small):
        cells = kind(settings).cells()
        assert json.loads(json.dumps(cells)) == cells
        assert len({json.dumps(cell, sort_keys=True) for cell in cells}) == len(cells)


@pytest.mark.usefixtures("drawn")
def test_publishing_puts_tables_cells_and_plot_into_the_docs_and_writes_them_anew(tmp_path, capsys):
    docs, out, again = (tmp_path / name for name in ("docs", "out", "again"))
    docs.mkdir()
    words = ["study", "fine-grained", "--out"]
    assert run([*words, str(out), *SMALL, "--publish", str(docs)]) == 2
    assert "must hold '<!-- tables -->'" in capsys.readouterr().err
    page = docs / "fine-grained.md"
    page.write_text("# Title\n<!-- tables -->\nold\n<!-- /tables -->\nend\n")
    assert run([*words, str(out), *SMALL, "--publish", str(docs)]) == 0
    first = page.read_text()
    assert "| 0.01 | 0.05 | 0.0101 |" in first
    assert "old" not in first
    assert first.endswith("end\n")
    cells = str(docs / "fine-grained.parquet")
    assert read_cells(Path(cells))["rows"] == read_cells(out / "results.json")["rows"]
    assert run([*words, str(again), "--from", cells, "--publish", str(docs)]) == 0
    assert page.read_text() == first
    assert not (again / "cells").exists()
    assert (again / "figure.png").stat().st_size > 10_000
    # What it is not for is refused.
    assert run(["study", "glofnd", "--from", cells, "--out", str(again)]) == 2
    assert "holds the study 'fine-grained', not 'glofnd'" in capsys.readouterr().err


def test_the_settings_of_a_run_are_a_file_that_repeats_it(tmp_path):
    words = ["study", "fine-grained", *SMALL, "--out", str(tmp_path / "a")]
    assert run(words) == 0
    config = str(tmp_path / "a" / "settings.yaml")
    assert run(["study", "fine-grained", "--config", config, "--out", str(tmp_path / "b")]) == 0
    first, again = (json.loads((tmp_path / n / "results.json").read_text()) for n in "ab")
    assert again["settings"] == first["settings"]
    assert again["rows"] == first["rows"]


def test_an_installed_package_without_its_source_says_how_to_get_the_studies(
    tmp_path, monkeypatch, capsys
):
    for name in [one for one in sys.modules if one.partition(".")[0] == "studies"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(verbs, "__file__", str(tmp_path / "a" / "b" / "experiments.py"))
    assert run(["study", "--list"]) == 2
    said = capsys.readouterr().err
    assert "not part of the installed package" in said
    assert "python scripts/studies --list" in said


@pytest.mark.parametrize("script", [flip_claims.main, pretrain_trunk.main, eta_table.main])
def test_a_script_says_in_a_sentence_what_to_mend(script, tmp_path, capsys):
    assert run_script(script, [str(tmp_path / "none"), str(tmp_path / "out")]) == 2
    assert "there is no such folder" in capsys.readouterr().err


def test_the_folder_of_the_studies_runs_as_a_program(monkeypatch, capsys):
    folder = REPO / "scripts/studies"
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])  # as Python itself does
    monkeypatch.setattr(sys, "argv", [str(folder), "--list", "--json"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(str(folder / "__main__.py"), run_name="__main__")
    assert sys.path[0] == str(REPO / "scripts")
    assert "fine-grained" in json.loads(capsys.readouterr().out)
