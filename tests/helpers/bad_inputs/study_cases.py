"""Published results of a study from which its page is to be written anew."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_inputs.case import case
from bad_inputs.world import World

AREA = "results of a study"
PUBLISHED = Path(__file__).resolve().parents[3] / "docs" / "studies" / "fine-grained.json"


def _words(world: World, text: str, *more: str) -> list[str]:
    path = world.here / "results.json"
    path.write_text(text, encoding="utf-8")
    return ["study", "fine-grained", "--from", str(path), "--out", str(world.here / "new"), *more]


def _changed(change: Callable[[dict[str, Any]], Any]) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        content = json.loads(PUBLISHED.read_text(encoding="utf-8"))
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

case(AREA, "cut short", "refused")(
    lambda world: _words(world, PUBLISHED.read_text(encoding="utf-8")[:1000])
)
case(AREA, "a list", "refused")(lambda world: _words(world, "[1]"))
case(AREA, "settings beside it", "refused")(
    lambda world: _words(world, PUBLISHED.read_text(encoding="utf-8"), "starts=4")
)
