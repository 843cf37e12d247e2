"""Results of the benchmark (`bench table`, `bench validate`): the sample, damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from bad_inputs.case import case
from bad_inputs.world import World

RESULTS = "benchmark results"
SAMPLE = Path(__file__).parents[3] / "docs" / "benchmark"
RESULT = "openi-debiased/phantom.retrieval@1"
RECORD, ITEMS = f"{RESULT}/record.json", f"{RESULT}/items/study_retrieval.parquet"
Damage = Callable[[Path], object]


def _sample(damage: Damage, *words: str) -> Callable[[World], list[str]]:
    """A verb on a damaged copy of the sample."""

    def build(world: World) -> list[str]:
        folder = world.here / "results"
        shutil.copytree(SAMPLE, folder)
        damage(folder)
        verb, *rest = words
        return ["bench", verb, str(folder), *rest]

    return build


def _json(name: str, change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(folder: Path) -> None:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
        change(content)
        (folder / name).write_text(json.dumps(content), encoding="utf-8")

    return damage


def _items(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Damage:
    def damage(folder: Path) -> None:
        change(pd.read_parquet(folder / ITEMS)).to_parquet(folder / ITEMS, index=False)

    return damage


def _nothing(_: Path) -> None:
    pass


for what, damage in {
    "a card's version": _json(RECORD, lambda r: r["card"].update(version=2)),
    "a card of other content": _json(RECORD, lambda r: r["card"].update(hash="0" * 16)),
    "another preset": _json(RECORD, lambda r: r.update(preset="carzero")),
    "another list of images": _json(RECORD, lambda r: r["judged"].update(list_hash="0" * 16)),
    "a record that is cut off": lambda folder: (folder / RECORD).write_text('{"format": 1,'),
    "a record of another format": _json(RECORD, lambda r: r.update(format=9)),
    "two models of one name": _json(
        "phantom-demo/model.json", lambda m: m.update(name="openi-debiased")
    ),
    "items that are no table": lambda folder: (folder / ITEMS).write_text("Quackenbush"),
    "items without patients": _items(lambda table: table.drop(columns="patient")),
    "no model": lambda folder: [path.unlink() for path in folder.glob("*/model.json")],
}.items():
    case(RESULTS, f"table: {what}", "refused")(_sample(damage, "table"))
for what, words in {
    "no such format": ["--format", "pdf"],
    "no such baseline": ["--baseline", "openi"],
    "no such card": ["--cards", "openi/retrievl"],
    "no such model": ["--models", "openi-debiased,openi"],
}.items():
    case(RESULTS, f"table: {what}", "refused")(_sample(_nothing, "table", *words))
for what, damage in {
    "raw ids": _items(
        lambda table: table.assign(item=[f"19876543-{n}" for n in range(len(table))])
    ),
    "words of a report": _items(lambda table: table.assign(text="Mr. Zebulon Quackenbush.")),
    "ranks that do not give the figure": _items(
        lambda table: table.assign(rank_text_to_image_strict=1.0)
    ),
    "a path": _json(RECORD, lambda r: r.update(command="bench /home/Quackenbush/model")),
    "a long text": _json(RECORD, lambda r: r.update(notes=["Mr. Zebulon Quackenbush. " * 40])),
    "no licence": _json("openi-debiased/model.json", lambda m: m.update(licence=None)),
    "a picture": lambda folder: (folder / RESULT / "map.png").write_bytes(b"x"),
}.items():
    case(RESULTS, f"validate: {what}", "refused")(_sample(damage, "validate"))
