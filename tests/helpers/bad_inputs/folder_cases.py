"""Folders that the program made itself, damaged: prepared sets, models, runs, indexes, parts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from bad_inputs.case import Case, Counted, case, cases
from bad_inputs.world import Base, World, change_json


def empty(path: Path) -> None:
    """Leave nothing in a file."""
    path.write_bytes(b"")


def halve(path: Path) -> None:
    """Cut a file off in the middle."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def halve_lines(path: Path) -> None:
    """Keep the first half of the lines: inside one, what is left need be no YAML."""
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))


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
    {
        "meta.json: cut off": ("meta.json", halve),
        "images.parquet: random bytes": ("images.parquet", scramble),
        "studies.parquet: missing": ("studies.parquet", Path.unlink),
        "studies.parquet: empty": ("studies.parquet", empty),
        "images.bin: cut off": ("images.bin", halve),
        "pixels of every row changed in place": ("images.bin", _negative),
        "another sentences table under the same meta.json": ("sentences.parquet", _shuffled),
    },
)


cases(SET, World.train, {"a folder that is no prepared set": {"prepared": "/"}})

# ------------------------------------------------------------------------------ model folders

MODEL = "model folder (evaluate)"


def _model(world: World, name: str, damage: Callable[[Path], object]) -> list[str]:
    model = world.model()
    damage(model / name)
    return world.evaluate(model=model)


def _config(world: World, change: Callable[[dict[str, Any]], object]) -> list[str]:
    return _model(world, "config.json", lambda path: change_json(path, change))


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
    {
        "weights cut off": ("model.safetensors", halve),
        "config.json is empty": ("config.json", empty),
        "tokenizer.json is missing": ("tokenizer.json", Path.unlink),
        "tokenizer.json of random bytes": ("tokenizer.json", scramble),
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
        "an architecture of another name": (
            lambda content: content["architecture"]["image"].update(arch="resnet9000")
        ),
        "sizes of an image encoder that has none": (
            lambda content: content.update(image_config={"hidden_size": 64})
        ),
        "a text encoder of another family": (
            lambda content: content["text_config"].update(model_type="t5")
        ),
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
)


@case(RUN, "a folder in the place of a run's")
def _no_run(world: World) -> list[str]:
    return ["train", str(world.copy("run") / "model")]


REPORT = "run folder (report)"


def _report(world: World, name: str, damage: Callable[[Path], object]) -> list[str]:
    run = world.copy("run")
    damage(run / name)
    return ["report", str(run)]


cases(
    REPORT,
    _report,
    {
        "results.json: cut off": ("results.json", halve),
        "metrics.csv: random bytes": ("metrics.csv", scramble),
        "metrics.csv: empty": Counted("metrics.csv", ("metrics.csv", empty)),
        "metrics.csv: cut off": Counted("metrics.csv", ("metrics.csv", halve)),
        "settings.yaml: cut off": Counted("settings.yaml", ("settings.yaml", halve_lines)),
    },
)


@case(REPORT, "a link out of heatmaps/")
def _linked(world: World) -> list[str]:
    run = world.copy("run")
    secret = world.file("secret.txt", "Zebulon Quackenbush")
    picture = sorted((run / "heatmaps").glob("*.png"))[0]
    picture.unlink()
    picture.symlink_to(secret)
    return ["report", str(run)]


@case(REPORT, "--prepared of another set")
def _another_set(world: World) -> list[str]:
    run, other = world.copy("run"), world.copy("prepared")
    change_json(other / "meta.json", lambda content: content.update(content_hash="0" * 64))
    return ["report", str(run), "--prepared", str(other)]


# ------------------------------------------------------------------------------------- indexes

INDEX = "search index"


def _search(index: Path) -> list[str]:
    return ["search", str(index), "--text", "Edema."]


def index_cases(base: Base) -> list[Case]:
    """Every file that an index has, cut off."""

    def damaged(world: World, name: str) -> list[str]:
        index = world.copy("index")
        halve(index / name)
        return _search(index)

    names = [p.name for p in sorted(base.index.iterdir()) if p.is_file() and p.name[0] != "."]
    return [Case(INDEX, name, partial(damaged, name=name)) for name in names]


@case(INDEX, "a folder that is no index")
def _no_index(world: World) -> list[str]:
    return _search(world.copy("prepared"))


@case(INDEX, "a file is missing")
def _missing(world: World) -> list[str]:
    index = world.copy("index")
    (index / "text.faiss").unlink()
    return _search(index)


@case(INDEX, "the model it was built with is gone")
def _gone(world: World) -> list[str]:
    index = world.copy("index")
    path = index / "index.json"
    content = path.read_text(encoding="utf-8")
    path.write_text(content.replace(str(world.base.run), "/nowhere"), encoding="utf-8")
    return _search(index)


# ---------------------------------------------------------------------------- parts of a set

PARTS = "parts of a set (merge)"


def part_cases(base: Base) -> list[Case]:
    """Every file that a part has, with one bit flipped; an empty file has none."""
    files = [path for path in sorted(base.part.rglob("*")) if path.is_file()]
    names = [p.name for p in files if p.suffix != ".lock" and p.stat().st_size > 8]

    def damaged(world: World, name: str) -> list[str]:
        parts = [world.copy("part"), world.copy("other_part")]
        flip(sorted(parts[0].rglob(name))[0])
        return ["merge", *map(str, parts), str(world.out)]

    return [Case(PARTS, name, partial(damaged, name=name)) for name in names]
