"""Report triplets (`evaluate --triplets`): CXR-Align's JSON and tables, damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from bad_inputs.case import cases, counted
from bad_inputs.world import World

TRIPLETS = "report triplets"
_TEXTS = {
    "original": "Edema. Mr. Zebulon Quackenbush has an effusion.",
    "negated": "Edema. No effusion.",
    "omitted": "Edema.",
}
_PUBLISHED = {"original": "report", "negated": "negation", "omitted": "omitted"}


def _images(world: World) -> pd.DataFrame:
    return pd.read_parquet(world.base.prepared / "images.parquet", columns=["image_id"])


def _json(world: World, change: Callable[[dict[str, Any]], Any]) -> list[str]:
    """Cases of every image of the set, changed."""
    texts = {_PUBLISHED[kind]: text for kind, text in _TEXTS.items()}
    triplets = {name: dict(texts) for name in _images(world)["image_id"]}
    return world.evaluate("--triplets", str(world.file("cxr-align.json", change(triplets))))


def _table(world: World, change: Callable[[pd.DataFrame], pd.DataFrame]) -> list[str]:
    """A table with a row for every image of the set, changed."""
    table = change(pd.DataFrame({"image_id": _images(world)["image_id"], **_TEXTS}))
    return world.evaluate("--triplets", str(world.file("triplets.csv", table.to_csv(index=False))))


def _first(cases: dict[str, Any], value: Any) -> dict[str, Any]:
    return {"mimic": {**cases, next(iter(cases)): value}}


cases(
    TRIPLETS,
    _json,
    {
        "a list": list,
        "no group": lambda _: {},
        "image ids without their group": lambda cases: cases,
        "a group that is a list": lambda cases: {"mimic": list(cases)},
        "an entry that is a text": lambda cases: _first(cases, "Quackenbush"),
        "an entry without its negation": lambda cases: _first(cases, {"report": "Zebulon."}),
        "one image in two groups": lambda cases: {"mimic": cases, "again": cases},
        "ids of other data": lambda cases: {
            "mimic": {f"Quackenbush-{number}": each for number, each in enumerate(cases.values())}
        },
    },
    before="JSON: ",
)
cases(
    TRIPLETS,
    _table,
    {
        "no column 'negated'": lambda table: table.drop(columns="negated"),
        "no key": lambda table: table.drop(columns="image_id"),
        "an image twice": lambda table: pd.concat([table, table.head(1)]),
        "a blank image": lambda table: table.assign(image_id=["", *table["image_id"].iloc[1:]]),
        "reports without a word": counted(
            "without a sentence", lambda table: table.assign(negated="___")
        ),
        "the negated report is the original": counted(
            "equals the orig", lambda table: table.assign(negated=table["original"])
        ),
        "half of the images": counted(
            '"images_of_other_splits": [1-9]', lambda table: table.iloc[::2]
        ),
    },
    before="table: ",
)
