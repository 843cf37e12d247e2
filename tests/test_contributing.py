"""CONTRIBUTING.md: its map is the territory, and its examples run as they are written."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Annotated

import typer

REPO = Path(__file__).parents[1]
PAGE = (REPO / "CONTRIBUTING.md").read_text(encoding="utf-8")
PACKAGE = REPO / "medclip_debias"


def recipe(name):
    found = re.search(rf"<!-- recipe: {name} -->\n```(?:python|yaml)\n(.*?)```", PAGE, re.S)
    return found.group(1)


def test_every_folder_of_the_package_is_on_the_map():
    drawn = PAGE.split("medclip_debias/\n")[1].split("```")[0]
    named = set(re.findall(r"\b([a-z_]+)/", drawn))
    there = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert there <= named
    nested = {path.parent.name for path in PACKAGE.rglob("__init__.py")} | there
    outside = {"configs", "scripts", "studies", "bench", "tests", "docs", "bad_inputs"}
    assert named <= nested | outside


def test_every_file_and_name_of_the_flows_is_there():
    table = PAGE.split("## How data flows")[1].split("## Recipes")[0]
    entries = re.findall(r"`([a-z_/]+(?:\.py|/))(?:: ([A-Za-z_.]+))?`", table)
    assert len(entries) > 15
    for place, name in entries:
        path = PACKAGE / place
        assert path.exists(), place
        for part in filter(None, name.split(".")):
            assert re.search(rf"(def|class) {part}\b", path.read_text(encoding="utf-8")), name


def test_links_lead_somewhere():
    """Of pages below docs/, `make docs` checks them."""
    for text in (PAGE, (REPO / "README.md").read_text(encoding="utf-8")):
        for link in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", text):
            assert (REPO / link).exists(), link


def test_the_verb_runs_and_stands_in_its_panel(prepared_phantom, capsys):
    from medclip_debias.cli import common, run
    from medclip_debias.data.store import PreparedSet

    names = vars(common) | {"common": common, "typer": typer, "Path": Path, "Annotated": Annotated}
    registered = list(common.app.registered_commands)
    try:
        exec(compile(textwrap.dedent(recipe("verb")), "recipe", "exec"), names)
        assert run(["sentences", str(prepared_phantom), "--json"]) == 0
        counted = json.loads(capsys.readouterr().out)["distinct_sentences"]
        assert counted == len(PreparedSet.open(prepared_phantom).texts)
        assert run(["sentences", "nowhere"]) == 2
    finally:
        common.app.registered_commands[:] = registered
