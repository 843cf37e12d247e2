"""The benchmark (`bench`): archives, lists, cards, models and results that do not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from bad_inputs.case import case
from bad_inputs.world import World

BENCH = "benchmark"


def _card(**changes: Any) -> dict[str, Any]:
    data = {"archive": "mimic_cxr", "folders": ["tree"], "obtain": "the phantom", "synthetic": True}
    content = {
        "name": "phantom/own",
        "version": 1,
        "kind": "zero_shot",
        "title": "Own",
        "about": "A",
    }
    content |= {"prompts": "chex5", "metrics": ["zero_shot.mean_auc"], "data": data}
    changed = data | changes.pop("data", {})
    return content | changes | {"data": changed}


def _bench(world: World, root: Path, *cards: dict[str, Any]) -> list[str]:
    """The command line for cards of one's own."""
    files = []
    for number, content in enumerate(cards):
        path = world.here / f"card{number}.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        files.append(str(path))
    words = ["bench", f"own={world.base.run / 'model'}", "--tasks", ",".join(files)]
    words += ["--data", str(root), "--out", str(world.out), "--bootstrap", "0"]
    return [*words, "--workers", "1", "--device", "cpu"]


def _root(world: World) -> Path:
    world.copy("tree")
    return world.here


def _of(**changes: Any) -> Callable[[World], list[str]]:
    return lambda world: _bench(world, _root(world), _card(**changes))


def _listed(world: World, names: list[str], **wanted: Any) -> list[str]:
    (_root(world) / "tree" / "list.txt").write_text("\n".join(names), encoding="utf-8")
    listed = {"split": "all", "file": "list.txt", **wanted}
    return _bench(world, world.here, _card(data={"list": listed}))


def _ids(world: World) -> list[str]:
    return list(pd.read_parquet(world.base.prepared / "images.parquet")["image_id"])


for what, changes in {
    "an archive that is not there": {"data": {"archive": "vindr_cxr"}},
    "an archive of an unknown kind": {"data": {"archive": "nobodys"}},
    "a card of real radiographs on a phantom": {"data": {"synthetic": False}},
    "an unknown key": {"metric": "zero_shot.mean_auc"},
    "no metric": {"metrics": []},
    "a metric of no protocol": {"metrics": ["zero_shto.mean_auc"]},
    "a metric that nothing measures": {"metrics": ["zero_shot.mean_auk"]},
    "an unknown preset": {"preset": "nobodys"},
    "an unknown option": {"options": {"smoothnig": 1}},
    "an unknown class": {"classes": ["Oedema"]},
    "an unknown prompt set": {"prompts": "of_nobody"},
    "a selection that leaves nothing": {"data": {"prepare": {"views": ["QUACK"]}}},
    "an unknown setting of the selection": {"data": {"prepare": {"veiws": ["AP"]}}},
    "a file that the evaluation needs and nobody made": {"data": {"files": {"triplets": "no.csv"}}},
}.items():
    case(BENCH, f"a card: {what}", "refused")(_of(**changes))


@case(
    BENCH,
    "a card: a label map of other columns",
    "counted",
    shows="Not judged, and not in any mean",
)
def _other_map(world: World) -> list[str]:
    return _bench(world, _root(world), _card(label_map="vindr_cxr"))


@case(BENCH, "labels that lack a column", "refused")
def _lost_column(world: World) -> list[str]:
    root = _root(world)
    tables = ("mimic-cxr-2.0.0-chexpert.csv*", "mimic-cxr-2.1.0-test-set-labeled.csv*")
    for path in (path for name in tables for path in (root / "tree").glob(name)):
        pd.read_csv(path, dtype=str).drop(columns="Edema").to_csv(path, index=False)
    return _bench(world, root, _card())


@case(BENCH, "a list that is not there", "refused")
def _no_list(world: World) -> list[str]:
    return _bench(world, _root(world), _card(data={"list": {"split": "all", "file": "list.txt"}}))


@case(BENCH, "an empty list", "refused")
def _empty_list(world: World) -> list[str]:
    return _listed(world, [])


@case(BENCH, "a list of images of other data", "refused")
def _other_list(world: World) -> list[str]:
    return _listed(world, ["Quackenbush-1", "Quackenbush-2"])


@case(BENCH, "a list of another length than the card's", "refused")
def _longer_list(world: World) -> list[str]:
    return _listed(world, _ids(world), images=7)


@case(BENCH, "a list of another hash than the card's", "refused")
def _another_hash(world: World) -> list[str]:
    return _listed(world, _ids(world), hash="0" * 16)


@case(BENCH, "a list with names of no image", "counted", shows="incomplete")
def _some_unknown(world: World) -> list[str]:
    return _listed(world, [*_ids(world), "unknown-1", "unknown-2", "unknown-3"])


@case(BENCH, "an archive without its images", "refused")
def _no_images(world: World) -> list[str]:
    root = _root(world)
    for path in (root / "tree").rglob("*.jpg"):
        path.unlink()
    return _bench(world, root, _card())


@case(BENCH, "an archive that lacks images of the test split", "counted", shows="incomplete")
def _some_images(world: World) -> list[str]:
    root = _root(world)
    images = pd.read_parquet(world.base.prepared / "images.parquet")
    for name in images.loc[images["split"] == "test", "image_id"].head(1):
        next((root / "tree").rglob(f"{name}.jpg")).unlink()
    return _bench(world, root, _card())


@case(BENCH, "the results of another model", "refused")
def _other_results(world: World) -> list[str]:
    words = _bench(world, _root(world), _card())
    place = world.out / "own"
    place.mkdir(parents=True)
    content = '{"format": 1, "name": "own", "hash": "0123456789abcdef"}'
    (place / "model.json").write_text(content, encoding="utf-8")
    return words


@case(BENCH, "no folder of data", "refused")
def _no_root(world: World) -> list[str]:
    return _bench(world, world.here / "nowhere", _card())


@case(BENCH, "a folder that is no model", "refused")
def _no_model(world: World) -> list[str]:
    words = _bench(world, _root(world), _card())
    return [words[0], str(world.here / "tree"), *words[2:]]
