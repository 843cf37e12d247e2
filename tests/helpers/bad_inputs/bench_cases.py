"""The benchmark: cards, archives, lists and models that do not fit; results, damaged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from bad_inputs.case import Counted, case, cases
from bad_inputs.world import World, change_json

BENCH = "benchmark"


def _card(**changes: Any) -> dict[str, Any]:
    data = {"archive": "mimic_cxr", "folders": ["tree"], "obtain": "the phantom", "synthetic": True}
    content = {
        **{"name": "phantom/own", "version": 1, "kind": "zero_shot", "title": "Own", "about": "A"},
        **{"prompts": "chex5", "metrics": ["zero_shot.mean_auc"], "data": data},
    }
    changed = data | changes.pop("data", {})
    return content | changes | {"data": changed}


def _bench(world: World, root: Path | None = None, **changes: Any) -> list[str]:
    """The command line for a card of one's own, on a copy of the tree or in ``root``."""
    if root is None:
        world.copy("tree")
    path = world.file("card0.yaml", yaml.safe_dump(_card(**changes)))
    words = ["bench", f"own={world.base.run / 'model'}", "--tasks", str(path)]
    words += ["--data", str(root or world.here), "--out", str(world.out), "--bootstrap", "0"]
    return [*words, "--workers", "1", "--device", "cpu"]


def _listed(world: World, names: Callable[[list[str]], list[str]], **wanted: Any) -> list[str]:
    ids = list(pd.read_parquet(world.base.prepared / "images.parquet")["image_id"])
    words = _bench(world, data={"list": {"split": "all", "file": "list.txt", **wanted}})
    world.file("tree/list.txt", "\n".join(names(ids)))
    return words


cases(
    BENCH,
    _bench,
    {
        "an archive that is not there": {"data": {"archive": "vindr_cxr"}},
        "an archive of an unknown kind": {"data": {"archive": "nobodys"}},
        "a card of real radiographs on a phantom": {"data": {"synthetic": False}},
        "an unknown key": {"metric": "zero_shot.mean_auc"},
        "a metric of no protocol": {"metrics": ["zero_shto.mean_auc"]},
        "a metric that nothing measures": {"metrics": ["zero_shot.mean_auk"]},
        "an unknown option": {"options": {"smoothnig": 1}},
        "a file that the evaluation needs and nobody made": {
            "data": {"files": {"triplets": "no.csv"}}
        },
        "a list that is not there": {"data": {"list": {"split": "all", "file": "list.txt"}}},
        "a label map of other columns": Counted(
            "Not judged, and not in any mean", {"label_map": "vindr_cxr"}
        ),
    },
    before="a card: ",
)
cases(
    BENCH,
    _listed,
    {
        "an empty list": lambda _: [],
        "a list of images of other data": lambda _: ["Quackenbush-1", "Quackenbush-2"],
        "a list of another length than the card's": {"names": list, "images": 7},
        "a list with names of no image": Counted(
            "incomplete", lambda ids: [*ids, "unknown-1", "unknown-2", "unknown-3"]
        ),
    },
)


@case(BENCH, "labels that lack a column")
def _lost_column(world: World) -> list[str]:
    words = _bench(world)
    tables = ("mimic-cxr-2.0.0-chexpert.csv*", "mimic-cxr-2.1.0-test-set-labeled.csv*")
    for path in (path for name in tables for path in (world.here / "tree").glob(name)):
        pd.read_csv(path, dtype=str).drop(columns="Edema").to_csv(path, index=False)
    return words


@case(BENCH, "an archive that lacks images of the test split", "incomplete")
def _lost_image(world: World) -> list[str]:
    words = _bench(world)
    images = pd.read_parquet(world.base.prepared / "images.parquet")
    lost = images.loc[images["split"] == "test", "image_id"].iloc[0]
    next((world.here / "tree").rglob(f"{lost}.jpg")).unlink()
    return words


@case(BENCH, "the results of another model")
def _other_results(world: World) -> list[str]:
    words = _bench(world)
    world.file("out/own/model.json", {"format": 1, "name": "own", "hash": "0123456789abcdef"})
    return words


@case(BENCH, "no folder of data")
def _no_root(world: World) -> list[str]:
    return _bench(world, world.here / "nowhere")


# ------------------------------------------------------------------------------------- results

RESULTS = "benchmark results"
SAMPLE = Path(__file__).parents[3] / "docs" / "benchmark"
ON_CARD = "phantom.retrieval@1"
RESULT = f"openi-debiased/{ON_CARD}"
RECORD, ITEMS = f"{RESULT}/record.json", f"{RESULT}/items/study_retrieval.parquet"
Damage = Callable[[Path], object]


def _sample(world: World, verb: str, damage: Damage, *words: str) -> list[str]:
    """A verb on a damaged copy of the sample, of one card."""
    folder = world.here / "results"
    for model in (path.name for path in SAMPLE.iterdir() if path.is_dir()):
        shutil.copytree(SAMPLE / model / ON_CARD, folder / model / ON_CARD)
        shutil.copy(SAMPLE / model / "model.json", folder / model)
    damage(folder)
    return ["bench", verb, str(folder), *words]


def _json(name: str, change: Callable[[dict[str, Any]], object]) -> Damage:
    return lambda folder: change_json(folder / name, change)


def _within(part: str, **changes: Any) -> Damage:
    return _json(RECORD, lambda record: record[part].update(changes))


def _items(change: Callable[[pd.DataFrame], pd.DataFrame]) -> Damage:
    def damage(folder: Path) -> None:
        change(pd.read_parquet(folder / ITEMS)).to_parquet(folder / ITEMS, index=False)

    return damage


cases(
    RESULTS,
    lambda world, damage: _sample(world, "table", damage),
    {
        "a card's version": _within("card", version=2),
        "another list of images": _within("judged", list_hash="0" * 16),
        "a record of another format": _json(RECORD, lambda record: record.update(format=9)),
        "two models of one name": _json(
            "phantom-demo/model.json", lambda m: m.update(name="openi-debiased")
        ),
        "items that are no table": lambda folder: (folder / ITEMS).write_text("Quackenbush"),
        "no model": lambda folder: [path.unlink() for path in folder.glob("*/model.json")],
    },
    before="table: ",
)
cases(
    RESULTS,
    lambda world, *words: _sample(world, "table", lambda _: None, *words),
    {
        "no such format": ("--format", "pdf"),
        "no such baseline": ("--baseline", "openi"),
        "no such card": ("--cards", "openi/retrievl"),
        "no such model": ("--models", "openi-debiased,openi"),
    },
    before="table: ",
)
cases(
    RESULTS,
    lambda world, damage: _sample(world, "validate", damage),
    {
        "raw ids": _items(lambda t: t.assign(item=[f"19876543-{n}" for n in range(len(t))])),
        "words of a report": _items(lambda t: t.assign(text="Mr. Zebulon Quackenbush.")),
    },
    before="validate: ",
)
