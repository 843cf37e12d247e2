"""Report triplets (`evaluate --triplets`): CXR-Align's JSON and tables, damaged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from bad_inputs.case import Counted, cases
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


cases(
    TRIPLETS,
    _json,
    {
        "no group": lambda _: {},
        "image ids without their group": lambda cases: cases,
        "a group that is a list": lambda cases: {"mimic": list(cases)},
    },
    before="JSON: ",
)
cases(
    TRIPLETS,
    _table,
    {
        "an image twice": lambda table: pd.concat([table, table.head(1)]),
        "negated reports without a word, or that equal the original": Counted(
            "(?s)(?=.*without a sentence).*equals the orig",
            lambda table: table.assign(
                negated=table["original"].where(table.index % 2 == 0, "___")
            ),
        ),
        "half of the images": Counted(
            '"images_of_other_splits": [1-9]', lambda table: table.iloc[::2]
        ),
    },
    before="table: ",
)
