"""Published results of a study from which its page is to be written anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_inputs.case import cases
from bad_inputs.world import World

AREA = "results of a study"
PUBLISHED = Path(__file__).resolve().parents[3] / "docs" / "studies" / "fine-grained.parquet"


def _words(world: World, name: str, content: str | bytes, *more: str) -> list[str]:
    path = world.file(name, content)
    return ["study", "fine-grained", "--from", str(path), "--out", str(world.here / "new"), *more]


def _results() -> dict[str, Any]:
    """The published cells as a run's ``results.json`` holds them."""
    from studies.command import read_cells

    return read_cells(PUBLISHED)


def _changed(world: World, change: Callable[[dict[str, Any]], object]) -> list[str]:
    content = _results()
    change(content)
    return _words(world, "results.json", json.dumps(content))


def _table(world: World, study: Callable[[], str]) -> list[str]:
    """The published table, which says ``study`` of what ran."""
    import pyarrow.parquet as pq

    path = world.here / "other.parquet"
    table = pq.read_table(PUBLISHED).replace_schema_metadata({"study": study()})
    pq.write_table(table, path)
    return _words(world, "cells.parquet", path.read_bytes())


cases(
    AREA,
    _changed,
    {
        "of another study": lambda content: content.update(study="noise"),
        "without its settings": lambda content: content.pop("settings"),
        "no cells": lambda content: content.update(rows=[]),
        "cells that are no list": lambda content: content.update(rows={"a": 1}),
        "a cell that is a number": lambda content: content.update(rows=[1]),
        "a cell without its example": lambda content: content["rows"][0].pop("example"),
        "a version that is text": lambda content: content.update(version="new"),
        "seconds that are text": lambda content: content.update(seconds="long"),
    },
)
cases(
    AREA,
    lambda world, make: _words(world, *make()),
    {
        "cut short": lambda: ("results.json", json.dumps(_results())[:1000]),
        "a list": lambda: ("results.json", "[1]"),
        "settings beside it": lambda: ("cells.parquet", PUBLISHED.read_bytes(), "starts=4"),
        "a table cut short": lambda: ("cells.parquet", PUBLISHED.read_bytes()[:2000]),
    },
)
cases(
    AREA,
    _table,
    {
        "a table that does not say what ran": lambda: "[]",
        "a table of another study": lambda: json.dumps(
            {**_results(), "rows": None, "study": "noise"}
        ),
    },
)
