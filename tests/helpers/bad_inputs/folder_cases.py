"""Folders that the program made itself, damaged: prepared sets, models, runs, indexes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from bad_inputs.case import Case, case
from bad_inputs.world import World


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


def flip(path: Path) -> None:
    """Change one bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def remove(path: Path) -> None:
    """Take a file away."""
    path.unlink()


def folder(path: Path) -> None:
    """Put a folder in a file's place."""
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "empty": empty,
    "cut off": halve,
    "random bytes": scramble,
    "missing": remove,
    "a folder in its place": folder,
}

# ----------------------------------------------------------------------------- prepared sets

SET = "prepared set (train)"


def _set(name: str, damage: Callable[[Path], None]) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        prepared = world.copy("prepared")
        damage(prepared / name)
        return world.train(prepared=str(prepared))

    return build


for name in ("images.bin", "images.parquet", "studies.parquet", "sentences.parquet", "meta.json"):
    for how, damage in DAMAGES.items():
        case(SET, f"{name}: {how}", "refused")(_set(name, damage))
for name in ("images.parquet", "sentences.parquet"):
    case(SET, f"{name}: one bit flipped", "refused")(_set(name, flip))


@case(SET, "pixels of every row changed in place", "refused")
def _pixels(world: World) -> list[str]:
    prepared = world.copy("prepared")
    path = prepared / "images.bin"
    path.write_bytes(bytes(255 - value for value in path.read_bytes()))
    return world.train(prepared=str(prepared))


@case(SET, "another sentences table under the same meta.json", "refused")
def _sentences(world: World) -> list[str]:
    import pandas as pd

    prepared = world.copy("prepared")
    frame = pd.read_parquet(prepared / "sentences.parquet")
    frame["text"] = frame["text"].sample(frac=1, random_state=0).to_numpy()
    frame.to_parquet(prepared / "sentences.parquet")
    return world.train(prepared=str(prepared))


@case(SET, "a folder that is no prepared set", "refused")
def _no_set(world: World) -> list[str]:
    (world.here / "photos").mkdir()
    return world.train(prepared=str(world.here / "photos"))


# ------------------------------------------------------------------------------ model folders

MODEL = "model folder (evaluate)"


def _model(name: str, damage: Callable[[Path], None]) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        model = world.model()
        damage(model / name)
        return world.evaluate(model=model)

    return build


def _config(change: Callable[[dict[str, Any]], None]) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        model = world.model()
        path = model / "config.json"
        content = json.loads(path.read_text(encoding="utf-8"))
        change(content)
        path.write_text(json.dumps(content), encoding="utf-8")
        return world.evaluate(model=model)

    return build


for name in ("model.safetensors", "config.json", "tokenizer.json"):
    for how, damage in DAMAGES.items():
        case(MODEL, f"{name}: {how}", "refused")(_model(name, damage))

HUGE = 10**9


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
    def change(content: dict[str, Any]) -> None:
        content["text_config"] = content.get("text_config", {}) | values

    return change


for what, change in {
    "config.json: a hidden size of a billion": _everywhere("hidden_size", HUGE),
    "config.json: a vocabulary of a billion": _everywhere("vocab_size", HUGE),
    "config.json: a million layers": _everywhere("num_hidden_layers", 10**6),
    "config.json: heads of 0": _everywhere("num_attention_heads", 0),
    "config.json: an attention of its own": _in_text_config(_attn_implementation="x/y"),
    "config.json: an unknown activation": _in_text_config(hidden_act="__import__"),
    "config.json: an unknown key": lambda content: content.update(bogus=1),
    "config.json: an architecture of another name": _everywhere("arch", "resnet9000"),
    "config.json: sizes of an image encoder that has none": lambda content: content.update(
        image_config={"hidden_size": 64}
    ),
    "config.json: a text encoder of another family": _in_text_config(model_type="t5"),
    "config.json: an input size below 0": _everywhere("input_size", -3),
}.items():
    case(MODEL, what, "refused")(_config(change))


# Published BERTs name code of their authors; nobody ever looks for it.
case(MODEL, "config.json: code to fetch (auto_map)", "read", "refused")(
    _config(_in_text_config(auto_map={"AutoModel": "a/b--c.D"}))
)


@case(MODEL, "weights as a pickle", "refused")
def _pickle(world: World) -> list[str]:
    import torch

    model = world.model()
    (model / "model.safetensors").unlink()
    torch.save({"x": torch.zeros(3)}, model / "pytorch_model.bin")
    return world.evaluate(model=model)


@case(MODEL, "a weight that is no number", "refused")
def _not_finite(world: World) -> list[str]:
    from safetensors.torch import load_file, save_file

    path = world.model() / "model.safetensors"
    state = load_file(path)
    name = max(state, key=lambda key: state[key].numel())
    state[name].view(-1)[0] = float("nan")
    save_file(state, path)
    return world.evaluate(model=path.parent)


@case(MODEL, "a weight of another shape", "refused")
def _other_shape(world: World) -> list[str]:
    from safetensors.torch import load_file, save_file

    path = world.model() / "model.safetensors"
    state = load_file(path)
    name = max(state, key=lambda key: state[key].numel())
    state[name] = state[name][:1].clone()
    save_file(state, path)
    return world.evaluate(model=path.parent)


# -------------------------------------------------------------------------------- run folders

RUN = "run folder (train again)"


def _run(name: str, damage: Callable[[Path], None]) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        run = world.copy("run")
        path = sorted(run.glob(name))[-1]
        damage(path)
        return world.resume(run)

    return build


for name in ("settings.yaml", "metrics.csv", "checkpoints/*.pt"):
    for how, damage in DAMAGES.items():
        words = "(?i)checkpoint|metrics|settings|log"
        case(RUN, f"{name}: {how}", "refused", "counted", "read", shows=words)(_run(name, damage))


@case(RUN, "a subfolder in checkpoints", "read", "refused", "counted", shows="checkpoints")
def _subfolder(world: World) -> list[str]:
    run = world.copy("run")
    (run / "checkpoints" / "old").mkdir()
    return world.resume(run)


@case(RUN, "settings.yaml of another run in its place", "refused")
def _other_settings(world: World) -> list[str]:
    run = world.copy("run")
    path = run / "settings.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("infonce", "clip"), encoding="utf-8")
    settings = world.base.settings() | {"loss": {"kind": "clip"}}
    return world.resume(run, loss=settings["loss"])


for what, words in {
    "continued with fewer steps": ["--continue", "train.steps=1"],
    "continued with another learning rate": ["--continue", "train.steps=9", "train.lr=0.5"],
    "--continue and --fresh at once": ["--continue", "--fresh"],
}.items():
    case(RUN, what, "refused", shows="steps|train.lr|--fresh")(
        lambda world, words=words: [*world.resume(world.copy("run")), *words]
    )


@case(RUN, "a folder in the place of a run's", "refused", shows="settings.yaml")
def _no_run(world: World) -> list[str]:
    return ["train", str(world.copy("run") / "model")]


@case(RUN, "continued.json: random bytes", "read", shows="continued")
def _damaged_plan(world: World) -> list[str]:
    run = world.copy("run")
    DAMAGES["random bytes"](_written(run / "continued.json"))
    return world.resume(run)


def _written(path: Path) -> Path:
    path.write_text('{"plans": [{"train.steps": 2, "train.patience": null}]}')
    return path


REPORT = "run folder (report)"
for name in ("results.json", "metrics.csv", "settings.yaml"):
    for how in ("empty", "cut off", "random bytes"):

        def _report(world: World, name: str = name, how: str = how) -> list[str]:
            run = world.copy("run")
            DAMAGES[how](run / name)
            return ["report", str(run)]

        case(REPORT, f"{name}: {how}", "refused", "counted", shows=name)(_report)


@case(REPORT, "a link out of heatmaps/", "refused", "counted", shows="(?i)link|heatmap")
def _linked(world: World) -> list[str]:
    run = world.copy("run")
    secret = world.here / "secret.txt"
    secret.write_text("Zebulon Quackenbush")
    picture = sorted((run / "heatmaps").glob("*.png"))[0]
    picture.unlink()
    picture.symlink_to(secret)
    return ["report", str(run)]


@case(REPORT, "--prepared of another set", "refused", shows="--prepared")
def _another_set(world: World) -> list[str]:
    run, other = world.copy("run"), world.copy("prepared")
    meta = other / "meta.json"
    content = json.loads(meta.read_text(encoding="utf-8"))
    meta.write_text(json.dumps(content | {"content_hash": "0" * 64}), encoding="utf-8")
    return ["report", str(run), "--prepared", str(other)]


@case(REPORT, "settings.yaml: words where numbers belong", "read", shows="report")
def _words_for_numbers(world: World) -> list[str]:
    run = world.copy("run")
    path = run / "settings.yaml"
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    content["train"] |= {"steps": "many", "batch_size": "some"}
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return ["report", str(run)]


# ------------------------------------------------------------------------------------- indexes

INDEX = "search index"


def _index(name: str, damage: Callable[[Path], None]) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        index = world.copy("index")
        damage(index / name)
        return ["search", str(index), "--text", "Edema."]

    return build


def index_cases(folder: Path, damage: str) -> list[Case]:
    """The damage of every file that an index has."""
    names = [p.name for p in sorted(folder.iterdir()) if p.is_file() and p.name[0] != "."]
    builds = {name: _index(name, DAMAGES[damage]) for name in names}
    return [Case(INDEX, f"{name}: {damage}", builds[name], ("refused",)) for name in names]


case(INDEX, "a folder that is no index", "refused")(
    lambda world: ["search", str(world.copy("prepared")), "--text", "Edema."]
)
case(INDEX, "an empty sentence", "refused")(
    lambda world: ["search", str(world.base.index), "--text", " "]
)
case(INDEX, "the model it was built with is gone", "refused")(lambda world: _gone(world))


def _gone(world: World) -> list[str]:
    index = world.copy("index")
    path = index / "index.json"
    path = path if path.is_file() else next(index.glob("*.json"))
    content = path.read_text(encoding="utf-8")
    path.write_text(content.replace(str(world.base.run), "/nowhere"), encoding="utf-8")
    return ["search", str(index), "--text", "Edema."]


# -------------------------------------------------------------------------------------- ground

GROUND = "images and sentences (ground)"
case(GROUND, "no such image", "refused")(lambda world: world.ground(world.here / "x.png"))
case(GROUND, "an empty folder", "refused")(lambda world: world.ground(_folder(world)))
case(GROUND, "a folder of files that are no image", "refused")(lambda world: _notes(world))
case(GROUND, "an image without a suffix in a folder", "read", "counted", shows="suffix|left out")(
    lambda world: _suffixless(world)
)
case(GROUND, "a linked folder in a folder", "read", "counted", shows="(?i)link|left out")(
    lambda world: _linked_folder(world)
)
case(GROUND, "one unreadable image of two", "counted", shows="skipped")(
    lambda world: _one_of_two(world)
)
case(GROUND, "an empty sentence", "refused")(
    lambda world: world.ground(world.picture("a.png"), words=("--text", " "))
)
case(GROUND, "a file of sentences that is empty", "refused")(lambda world: _no_sentences(world))
case(GROUND, "boxes of images that share a name", "refused")(lambda world: _same_names(world))


def _folder(world: World) -> Path:
    path = world.here / "pictures"
    path.mkdir(exist_ok=True)
    return path


def _notes(world: World) -> list[str]:
    (_folder(world) / "notes.txt.bak").write_text("Zebulon Quackenbush")
    return world.ground(_folder(world))


def _suffixless(world: World) -> list[str]:
    world.picture("pictures/a.png")
    world.picture("pictures/b.png", seed=2).rename(world.here / "pictures" / "b")
    return world.ground(_folder(world))


def _linked_folder(world: World) -> list[str]:
    world.picture("pictures/a.png")
    world.picture("elsewhere/b.png", seed=2)
    (world.here / "pictures" / "more").symlink_to(world.here / "elsewhere")
    return world.ground(_folder(world))


def _one_of_two(world: World) -> list[str]:
    bad = world.here / "bad.png"
    bad.write_bytes(b"no image")
    return world.ground(world.picture("a.png"), bad)


def _no_sentences(world: World) -> list[str]:
    path = world.here / "sentences.txt"
    path.write_text("\n \n")
    return world.ground(world.picture("a.png"), words=("--sentences", str(path)))


def _same_names(world: World) -> list[str]:
    content = {
        "images": [
            {
                "id": n,
                "file_name": f"patient{n}/s1/view1_frontal.png",
                "width": 40,
                "height": 40,
            }
            for n in (1, 2)
        ],
        "annotations": [
            {"id": n, "image_id": n, "category_id": 1, "bbox": [n, n, 9, 9], "label_text": "Edema."}
            for n in (1, 2)
        ],
        "categories": [{"id": 1, "name": "Edema"}],
    }
    path = world.here / "boxes.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    picture = world.picture("view1_frontal.png")
    return world.ground(picture, words=("--boxes", str(path)))


def _with_words(*words: str) -> Callable[[World], list[str]]:
    return lambda world: world.ground(world.picture("a.png"), words=words)


case(GROUND, "no rule of suppression in the model's folder", "refused")(_with_words("--suppress"))
case(GROUND, "boxes by a score and by a share at once", "refused")(
    _with_words("--threshold", "0.3", "--share", "0.5")
)
case(GROUND, "a share of the range above 1", "refused")(_with_words("--share", "1.5"))
case(GROUND, "an unknown way to sharpen", "refused")(_with_words("--sharpen", "contrst"))


@case(GROUND, "a rule of suppression of another model", "refused")
def _foreign_rule(world: World) -> list[str]:
    model = world.here / "model"
    shutil.copytree(world.base.run / "model", model)
    rule = {"format": 1, "evidence": "score", "threshold": 0.1, "model_hash": "0" * 16}
    (model / "suppression.json").write_text(json.dumps(rule), encoding="utf-8")
    words = ["--text", "Edema.", "--suppress", "--out", str(world.out)]
    return ["ground", str(model), str(world.picture("a.png")), *words]


@case(GROUND, "a share of sentences kept that is no share (suppression)", "refused")
def _no_share(world: World) -> list[str]:
    model = str(world.base.run / "model")
    return ["evaluate", "suppression", model, str(world.base.prepared), "--share", "98"]


# ---------------------------------------------------------------------------- parts of a set

PARTS = "parts of a set (merge)"


def _parts(world: World, damage: Callable[[Path], None], name: str) -> list[str]:
    parts = [world.copy("part"), world.copy("other_part")]
    damage(sorted(parts[0].rglob(name))[0])
    return ["merge", *map(str, parts), str(world.out)]


PART_DAMAGES: dict[str, Callable[[Path], None]] = {"one bit flipped": flip, "cut off": halve}


def part_cases(folder: Path, damage: str) -> list[Case]:
    """The damage of every file that a part has; an empty file has no bit to flip."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    names = [p.name for p in files if p.suffix != ".lock" and p.stat().st_size > 8]

    def build(name: str) -> Callable[[World], list[str]]:
        return lambda world: _parts(world, PART_DAMAGES[damage], name)

    return [Case(PARTS, f"{name}: {damage}", build(name), ("refused",)) for name in names]
