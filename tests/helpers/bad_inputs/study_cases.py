"""Published results of a study from which its page is to be written anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_inputs.case import case
from bad_inputs.world import World

AREA = "results of a study"
PUBLISHED = Path(__file__).resolve().parents[3] / "docs" / "studies" / "fine-grained.parquet"


def _words(world: World, content: str | bytes, *more: str, name: str = "results.json") -> list[str]:
    path = world.here / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return ["study", "fine-grained", "--from", str(path), "--out", str(world.here / "new"), *more]


def _results() -> dict[str, Any]:
    """The published cells as a run's ``results.json`` holds them."""
    from studies.command import read_cells

    return read_cells(PUBLISHED)


def _table(world: World, study: str) -> list[str]:
    """The published table, which says ``study`` of what ran."""
    import pyarrow.parquet as pq

    path = world.here / "other.parquet"
    pq.write_table(pq.read_table(PUBLISHED).replace_schema_metadata({"study": study}), path)
    return _words(world, path.read_bytes(), name="cells.parquet")


def _changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        content = _results()
        change(content)
        return _words(world, json.dumps(content))

    return build


for what, change in {
    "of another study": lambda content: content.update(study="noise"),
    "without its settings": lambda content: content.pop("settings"),
    "a setting that there is not": lambda content: content["settings"].update(color=1),
    "no cells": lambda content: content.update(rows=[]),
    "cells that are no list": lambda content: content.update(rows={"a": 1}),
    "a cell that is a number": lambda content: content.update(rows=[1]),
    "a cell without its example": lambda content: content["rows"][0].pop("example"),
    "a version that is text": lambda content: content.update(version="new"),
    "seconds that are text": lambda content: content.update(seconds="long"),
}.items():
    case(AREA, what, "refused")(_changed(change))

case(AREA, "cut short", "refused")(lambda world: _words(world, json.dumps(_results())[:1000]))
case(AREA, "a list", "refused")(lambda world: _words(world, "[1]"))
case(AREA, "settings beside it", "refused")(
    lambda world: _words(world, PUBLISHED.read_bytes(), "starts=4", name="cells.parquet")
)
case(AREA, "a table cut short", "refused")(
    lambda world: _words(world, PUBLISHED.read_bytes()[:2000], name="cells.parquet")
)
case(AREA, "a table that does not say what ran", "refused")(lambda world: _table(world, "[]"))
case(AREA, "a table of another study", "refused")(
    lambda world: _table(world, json.dumps({**_results(), "rows": None, "study": "noise"}))
)
