"""CONTRIBUTING.md: its example of a verb runs as it is written."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

PAGE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def recipe(name):
    found = re.search(rf"<!-- recipe: {name} -->\n```(?:python|yaml)\n(.*?)```", PAGE, re.S)
    return found.group(1)


def test_the_verb_runs_and_stands_in_its_panel(prepared_phantom, capsys):
    from medclip_debias.cli import common, run
    from medclip_debias.data.store import PreparedSet

    names = vars(common) | {"common": common, "typer": typer, "Path": Path, "Annotated": Annotated}
    registered = list(common.app.registered_commands)
    try:
        exec(compile(recipe("verb"), "recipe", "exec"), names)
        assert run(["sentences", str(prepared_phantom), "--json"]) == 0
        counted = json.loads(capsys.readouterr().out)["distinct_sentences"]
        assert counted == len(PreparedSet.open(prepared_phantom).texts)
        assert run(["sentences", "nowhere"]) == 2
    finally:
        common.app.registered_commands[:] = registered
