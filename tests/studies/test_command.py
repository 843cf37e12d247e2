"""The verb `study` and `python scripts/studies`: found, listed, run, published, refused."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from medclip_debias.cli import run
from medclip_debias.errors import UserError
from medclip_debias.experiments import source_tree
from studies.command import run_named
from studies.study import STUDIES

REPO = Path(__file__).parents[2]
SMALL = ["starts=4", "angles=401", "rare=[0.01, 0.1]", "temperatures=[0.05, 0.1]"]


def test_settings_come_as_words(tmp_path):
    found = run_named("fine-grained", tmp_path, words=SMALL, quick=True)
    assert found["settings"]["rare"] == [0.01, 0.1]
    with pytest.raises(UserError, match="did you mean 'starts'"):
        run_named("fine-grained", tmp_path, words=["start=4"])


def test_the_verb_lists_runs_and_refuses(tmp_path, capsys):
    assert run(["study", "--list", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(STUDIES.all())
    assert run(["study", "fine-grained", *SMALL, "--out", str(tmp_path / "s")]) == 0
    assert "finding: Example 1" in capsys.readouterr().out
    page = (tmp_path / "s/page.md").read_text()
    assert "## Findings" in page
    assert (tmp_path / "s/figure.png").stat().st_size > 10_000
    assert run(["study", "fine-graned"]) == 2
    assert "did you mean 'fine-grained'" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert run(["study", "fine-grained", "--quick", "--out", str(tmp_path / "file")]) == 2


@pytest.mark.parametrize("name", sorted(STUDIES.all()))
def test_every_study_says_what_it_is(name):
    kind = STUDIES.all()[name]
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


def test_a_page_is_written_anew_from_what_a_run_measured(tmp_path, capsys):
    docs, first = tmp_path / "docs", tmp_path / "first"
    docs.mkdir()
    assert run(["study", "fine-grained", *SMALL, "--out", str(first)]) == 0
    content = json.loads((first / "results.json").read_text())
    (first / "results.json").write_text(json.dumps(content | {"version": 0}))
    given = ["study", "fine-grained", "--from", str(first / "results.json")]
    out = ["--out", str(tmp_path / "again")]
    assert run([*given, *out, "--publish", str(docs)]) == 0
    assert not (tmp_path / "again/cells").exists()
    again = json.loads((docs / "fine-grained.json").read_text())
    assert again == content | {"version": 0}
    page = (docs / "fine-grained.md").read_text()
    assert "measured by version 0 of the study" in page
    note = re.search(r"\*\*The cells of this page.*?\*\*\n\n", page, re.DOTALL).group()
    assert page.replace(note, "") == (first / "page.md").read_text()
    # What it is not for is refused.
    capsys.readouterr()
    assert run([*given, "starts=4", *out]) == 2
    assert "leave other settings away" in capsys.readouterr().err
    assert run(["study", "glofnd", "--from", str(first / "results.json"), *out]) == 2
    assert "holds the study 'fine-grained', not 'glofnd'" in capsys.readouterr().err
    broken = content | {"rows": [{"part": "example 1"}]}
    (first / "results.json").write_text(json.dumps(broken))
    assert run([*given, *out]) == 2
    assert "the cells do not hold what fine-grained reads" in capsys.readouterr().err


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
    monkeypatch.setattr(source_tree, "__file__", str(tmp_path / "a" / "b" / "source_tree.py"))
    assert run(["study", "--list"]) == 2
    said = capsys.readouterr().err
    assert "not part of the installed package" in said
    assert "python scripts/studies --list" in said


SPAWNED = """
import multiprocessing
from medclip_debias.experiments.source_tree import studies_of_the_source

if __name__ == "__main__":
    studies_of_the_source()
    from studies.fine_grained import FineGrained

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(FineGrained.quick))
"""


def test_a_process_that_imports_all_anew_finds_the_studies_too(tmp_path):
    (tmp_path / "spawned.py").write_text(SPAWNED)
    found = _python(tmp_path, str(tmp_path / "spawned.py"))
    assert "starts=" in found


def test_the_folder_of_the_studies_runs_as_a_program(tmp_path):
    words = ["fine-grained", *SMALL, "--out", str(tmp_path / "out"), "--json"]
    found = json.loads(_python(tmp_path, str(REPO / "scripts/studies"), *words))
    assert found["study"] == "fine-grained"


def _python(folder: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(REPO)}
    command = [sys.executable, *words]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
