"""Report triplets (`evaluate --triplets`): CXR-Align's JSON and tables, damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pandas as pd

from bad_inputs.case import case
from bad_inputs.world import World

TRIPLETS = "report triplets"
_TEXTS = {
    "original": "Edema. Mr. Zebulon Quackenbush has an effusion.",
    "negated": "Edema. No effusion.",
    "omitted": "Edema.",
}
_PUBLISHED = {"original": "report", "negated": "negation", "omitted": "omitted"}


def _json(change: Callable[[dict[str, Any]], Any]) -> Callable[[World], list[str]]:
    """Cases of every image of the set, changed."""

    def build(world: World) -> list[str]:
        cases = {
            name: {_PUBLISHED[kind]: text for kind, text in _TEXTS.items()}
            for name in _images(world)["image_id"]
        }
        path = world.here / "cxr-align.json"
        path.write_text(json.dumps(change(cases)), encoding="utf-8")
        return world.evaluate("--triplets", str(path))

    return build


def _table(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[World], list[str]]:
    """A table with a row for every image of the set, changed."""

    def build(world: World) -> list[str]:
        table = pd.DataFrame({"image_id": _images(world)["image_id"], **_TEXTS})
        path = world.here / "triplets.csv"
        change(table).to_csv(path, index=False)
        return world.evaluate("--triplets", str(path))

    return build


def _images(world: World) -> pd.DataFrame:
    return pd.read_parquet(world.base.prepared / "images.parquet", columns=["image_id"])


def _first(cases: dict[str, Any], value: Any) -> dict[str, Any]:
    return {"mimic": {**cases, next(iter(cases)): value}}


for what, change in {
    "JSON: a list": list,
    "JSON: no group": lambda _: {},
    "JSON: image ids without their group": lambda cases: cases,
    "JSON: a group that is a list": lambda cases: {"mimic": list(cases)},
    "JSON: an entry that is a text": lambda cases: _first(cases, "Quackenbush"),
    "JSON: an entry without its negation": lambda cases: _first(cases, {"report": "Zebulon."}),
    "JSON: one image in two groups": lambda cases: {"mimic": cases, "again": cases},
    "JSON: ids of other data": lambda cases: {
        "mimic": {f"Quackenbush-{number}": each for number, each in enumerate(cases.values())}
    },
}.items():
    case(TRIPLETS, what, "refused")(_json(change))
for what, damage in {
    "table: no column 'negated'": lambda table: table.drop(columns="negated"),
    "table: no key": lambda table: table.drop(columns="image_id"),
    "table: an image twice": lambda table: pd.concat([table, table.head(1)]),
    "table: a blank image": lambda table: table.assign(image_id=["", *table["image_id"].iloc[1:]]),
}.items():
    case(TRIPLETS, what, "refused")(_table(damage))
case(TRIPLETS, "table: reports without a word", "counted", shows="without a sentence")(
    _table(lambda table: table.assign(negated="___"))
)
case(TRIPLETS, "table: the negated report is the original", "counted", shows="equals the orig")(
    _table(lambda table: table.assign(negated=table["original"]))
)
case(TRIPLETS, "table: half of the images", "counted", shows='"images_of_other_splits": [1-9]')(
    _table(lambda table: table.iloc[::2])
)
