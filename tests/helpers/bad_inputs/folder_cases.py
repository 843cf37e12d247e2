"""Folders that the program made itself, damaged: prepared sets, models, runs, indexes, parts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from bad_inputs.case import Case, case, cases
from bad_inputs.world import World, change_json


def empty(path: Path) -> None:
    """Leave nothing in a file."""
    path.write_bytes(b"")


def halve(path: Path) -> None:
    """Cut a file off in the middle."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def scramble(path: Path) -> None:
    """Random bytes of the same length."""
    import numpy as np

    path.write_bytes(np.random.default_rng(0).bytes(path.stat().st_size))


def flip(path: Path, mask: int = 1) -> None:
    """Change a bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= mask
    path.write_bytes(bytes(content))


def folder(path: Path) -> None:
    """Put a folder in a file's place."""
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": empty,
    "cut off": halve,
    "random bytes": scramble,
    "missing": Path.unlink,
    "a folder in its place": folder,
}


def _of_each(*names: str) -> dict[str, Any]:
    """Every damage of every file, as arguments."""
    return {f"{name}: {how}": (name, DAMAGES[how]) for name in names for how in DAMAGES}


# ----------------------------------------------------------------------------- prepared sets

SET = "prepared set (train)"


def _set(world: World, name: str, damage: Callable[[Path], object]) -> list[str]:
    prepared = world.copy("prepared")
    damage(prepared / name)
    return world.train(prepared=str(prepared))


def _negative(path: Path) -> None:
    path.write_bytes(bytes(255 - value for value in path.read_bytes()))


def _shuffled(path: Path) -> None:
    import pandas as pd

    frame = pd.read_parquet(path)
    frame["text"] = frame["text"].sample(frac=1, random_state=0).to_numpy()
    frame.to_parquet(path)


cases(
    SET,
    _set,
    _of_each(*("images.bin", "images.parquet", "studies.parquet", "sentences.parquet", "meta.json"))
    | {
        "images.parquet: one bit flipped": ("images.parquet", flip),
        "sentences.parquet: one bit flipped": ("sentences.parquet", flip),
        "pixels of every row changed in place": ("images.bin", _negative),
        "another sentences table under the same meta.json": ("sentences.parquet", _shuffled),
    },
)


@case(SET, "a folder that is no prepared set")
def _no_set(world: World) -> list[str]:
    (world.here / "photos").mkdir()
    return world.train(prepared=str(world.here / "photos"))


# ------------------------------------------------------------------------------ model folders

MODEL = "model folder (evaluate)"


def _model(world: World, name: str, damage: Callable[[Path], object]) -> list[str]:
    model = world.model()
    damage(model / name)
    return world.evaluate(model=model)


def _config(world: World, change: Callable[[dict[str, Any]], object]) -> list[str]:
    return _model(world, "config.json", lambda path: change_json(path, change))


def _everywhere(key: str, value: Any) -> Callable[[dict[str, Any]], None]:
    """Set a key wherever it stands in a nested dictionary."""

    def change(content: dict[str, Any]) -> None:
        for name, item in list(content.items()):
            if name == key:
                content[name] = value
            elif isinstance(item, dict):
                change(item)

    return change


def _in_text_config(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update(text_config=content.get("text_config", {}) | values)


def _pickle(path: Path) -> None:
    import torch

    path.unlink()
    torch.save({"x": torch.zeros(3)}, path.with_name("pytorch_model.bin"))


def _weights(change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Change the largest tensor."""

    def damage(path: Path) -> None:
        from safetensors.torch import load_file, save_file

        state = load_file(path)
        name = max(state, key=lambda key: state[key].numel())
        state[name] = change(state[name])
        save_file(state, path)

    return damage


def _not_finite(weight: Any) -> Any:
    weight.view(-1)[0] = float("nan")
    return weight


cases(
    MODEL,
    _model,
    _of_each("model.safetensors", "config.json", "tokenizer.json")
    | {
        "weights as a pickle": ("model.safetensors", _pickle),
        "a weight that is no number": ("model.safetensors", _weights(_not_finite)),
        "a weight of another shape": (
            *("model.safetensors", _weights(lambda weight: weight[:1].clone())),
        ),
    },
)
# Sizes and code in config.json: tests/models/test_hostile_folders.py.
cases(
    MODEL,
    _config,
    {
        "an architecture of another name": _everywhere("arch", "resnet9000"),
        "sizes of an image encoder that has none": (
            lambda content: content.update(image_config={"hidden_size": 64})
        ),
        "a text encoder of another family": _in_text_config(model_type="t5"),
        "an input size below 0": _everywhere("input_size", -3),
    },
    before="config.json: ",
)

# -------------------------------------------------------------------------------- run folders

RUN = "run folder (train again)"
# Damaged files of a run: tests/training/test_damaged.py.
cases(
    RUN,
    lambda world, *words: [*world.resume(world.copy("run")), *words],
    {
        "continued with fewer steps": ("--continue", "train.steps=1"),
        "continued with another learning rate": ("--continue", "train.steps=9", "train.lr=0.5"),
        "--continue and --fresh at once": ("--continue", "--fresh"),
    },
    shows="steps|train.lr|--fresh",
)


@case(RUN, "a folder in the place of a run's", shows="settings.yaml")
def _no_run(world: World) -> list[str]:
    return ["train", str(world.copy("run") / "model")]


REPORT = "run folder (report)"


def _report(world: World, name: str, damage: Callable[[Path], object]) -> list[str]:
    run = world.copy("run")
    damage(run / name)
    return ["report", str(run)]


for name in ("results.json", "metrics.csv", "settings.yaml"):
    cases(
        REPORT,
        _report,
        {f"{name}: {how}": (name, DAMAGES[how]) for how in ("empty", "cut off", "random bytes")},
        *("refused", "counted"),
        shows=name,
    )


@case(REPORT, "a link out of heatmaps/", "refused", "counted", shows="(?i)link|heatmap")
def _linked(world: World) -> list[str]:
    run = world.copy("run")
    secret = world.file("secret.txt", "Zebulon Quackenbush")
    picture = sorted((run / "heatmaps").glob("*.png"))[0]
    picture.unlink()
    picture.symlink_to(secret)
    return ["report", str(run)]


@case(REPORT, "--prepared of another set", shows="--prepared")
def _another_set(world: World) -> list[str]:
    run, other = world.copy("run"), world.copy("prepared")
    change_json(other / "meta.json", lambda content: content.update(content_hash="0" * 64))
    return ["report", str(run), "--prepared", str(other)]


def _words_for_numbers(path: Path) -> None:
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["train"] |= {"steps": "many", "batch_size": "some"}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")


cases(
    REPORT,
    _report,
    {"settings.yaml: words where numbers belong": ("settings.yaml", _words_for_numbers)},
    "read",
    shows="report",
)

# ------------------------------------------------------------------------------------- indexes

INDEX = "search index"


def _search(world: World, index: Path, text: str = "Edema.") -> list[str]:
    return ["search", str(index), "--text", text]


def index_cases(folder: Path, damage: str) -> list[Case]:
    """The damage of every file that an index has."""

    def build(name: str) -> Callable[[World], list[str]]:
        def damaged(world: World) -> list[str]:
            index = world.copy("index")
            DAMAGES[damage](index / name)
            return _search(world, index)

        return damaged

    names = [p.name for p in sorted(folder.iterdir()) if p.is_file() and p.name[0] != "."]
    return [Case(INDEX, f"{name}: {damage}", build(name), ("refused",)) for name in names]


@case(INDEX, "a folder that is no index")
def _no_index(world: World) -> list[str]:
    return _search(world, world.copy("prepared"))


@case(INDEX, "an empty sentence")
def _no_sentence(world: World) -> list[str]:
    return _search(world, world.base.index, " ")


@case(INDEX, "the model it was built with is gone")
def _gone(world: World) -> list[str]:
    index = world.copy("index")
    path = index / "index.json"
    path = path if path.is_file() else next(index.glob("*.json"))
    content = path.read_text(encoding="utf-8")
    path.write_text(content.replace(str(world.base.run), "/nowhere"), encoding="utf-8")
    return _search(world, index)


# ---------------------------------------------------------------------------- parts of a set

PARTS = "parts of a set (merge)"
PART_DAMAGES: dict[str, Callable[[Path], None]] = {"one bit flipped": flip, "cut off": halve}


def part_cases(folder: Path, damage: str) -> list[Case]:
    """The damage of every file that a part has; an empty file has no bit to flip."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [p.name for p in files if p.suffix != ".lock" and p.stat().st_size > 8]

    def build(name: str) -> Callable[[World], list[str]]:
        def damaged(world: World) -> list[str]:
            parts = [world.copy("part"), world.copy("other_part")]
            PART_DAMAGES[damage](sorted(parts[0].rglob(name))[0])
            return ["merge", *map(str, parts), str(world.out)]

        return damaged

    return [Case(PARTS, f"{name}: {damage}", build(name), ("refused",)) for name in names]
