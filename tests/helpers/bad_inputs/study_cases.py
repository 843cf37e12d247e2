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


cases(
    AREA,
    _changed,
    {
        "of another study": lambda content: content.update(study="noise"),
        "no cells": lambda content: content.update(rows=[]),
        "a cell without its example": lambda content: content["rows"][0].pop("example"),
        "a version that is text": lambda content: content.update(version="new"),
    },
)
cases(
    AREA,
    lambda world, end, *words: _words(world, "a.parquet", PUBLISHED.read_bytes()[:end], *words),
    {"settings beside it": (None, "starts=4"), "a table cut short": 2000},
)
