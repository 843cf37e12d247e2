"""Calibrations (`calibrate`, and the option `decisions` of `evaluate`): files and shares."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pandas as pd

from bad_inputs.case import case
from bad_inputs.world import World

CALIBRATIONS = "calibrations"
PROMPTS = {"positive": ["Pulmonary edema"], "negative": ["No pulmonary edema"]}


def _calibrate(*words: str) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        given = [str(world.base.run / "model"), str(world.base.prepared)]
        return ["calibrate", *given, "--out", str(world.out / "c.json"), *words]

    return build


for what, words in {
    "a prevalence of 0": ["--prevalence", "Edema=0"],
    "a prevalence in percent": ["--prevalence", "Edema=5"],
    "a prevalence that is no number": ["--prevalence", "Edema=few"],
    "a prevalence without a class": ["--prevalence", ".05"],
    "a prevalence of a class that has no prompts": ["--prevalence", "Oedema=.05"],
    "the training split": ["--split", "train"],
    "an unknown method": ["--set", "method=plat"],
    "a coverage of 1": ["--set", "coverage=1"],
}.items():
    case(CALIBRATIONS, what, "refused")(_calibrate(*words))


@case(CALIBRATIONS, "labels of one value", "refused")
def _one_value(world: World) -> list[str]:
    images = pd.read_parquet(world.base.prepared / "images.parquet", columns=["image_id"])
    path = world.here / "labels.csv"
    images.assign(Edema=1).to_csv(path, index=False)
    return _calibrate("--split", "test", "--labels", str(path), "--classes", "Edema")(world)


def _decide(world: World, decisions: dict[str, Any]) -> list[str]:
    path = world.here / "options.yaml"
    path.write_text(json.dumps({"decisions": decisions}), encoding="utf-8")
    return world.evaluate("--options", str(path), "--classes", "Edema")


def _file(change: Callable[[dict[str, Any]], Any]) -> Callable[[World], list[str]]:
    """A whole calibration of the run's model, changed."""

    def build(world: World) -> list[str]:
        results = json.loads((world.base.run / "results.json").read_text(encoding="utf-8"))
        edema = {
            "map": {"kind": "line", "slope": 9.0, "intercept": 0.0},
            "positive": [0.1, 0.2],
            "negative": [-0.1, 0.0],
        }
        content = {
            "model_hash": results["model_hash"],
            "data_hash": results["data_hash"],
            "split": "validate",
            "prompts": {"name": "mine", "classes": {"Edema": PROMPTS}},
            "method": "platt",
            "classes": {"Edema": edema},
        }
        path = world.here / "calibration.json"
        path.write_text(json.dumps(change(content)), encoding="utf-8")
        return _decide(world, {"calibration": str(path)})

    return build


def _edema(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda c: c | {"classes": {"Edema": c["classes"]["Edema"] | changes}}


for what, change in {
    "a list": lambda c: [c],
    "without its model": lambda c: {k: v for k, v in c.items() if k != "model_hash"},
    "of another model": lambda c: c | {"model_hash": "0" * 16},
    "of other prompts": lambda c: (
        c | {"prompts": {"name": "x", "classes": {"Edema": PROMPTS | {"negative": ["Dry"]}}}}
    ),
    "of another class": lambda c: c | {"prompts": {"name": "x", "classes": {"Mass": PROMPTS}}},
    "without a class": lambda c: c | {"classes": {}},
    "a score that is no number": _edema(positive=[float("nan"), 0.2]),
    "scores that fall": _edema(positive=[0.2, 0.1]),
    "no positive score": _edema(positive=[]),
    "a slope that falls": _edema(map={"kind": "line", "slope": -9.0, "intercept": 0.0}),
    "steps that fall": _edema(map={"kind": "steps", "at": [0, 1], "probability": [0.6, 0.4]}),
    "a target of 0": _edema(target=0),
    "of a later version": lambda c: c | {"format": 2},
}.items():
    case(CALIBRATIONS, f"file: {what}", "refused")(_file(change))

case(CALIBRATIONS, "file: not there", "refused")(
    lambda world: _decide(world, {"calibration": "nowhere.json"})
)
for what, decisions in {
    "a prevalence of 1": {"prevalence": {"Edema": 1}},
    "a prevalence of another class": {"prevalence": {"Oedema": 0.1}},
    "a prevalence estimated after a temperature": {
        "method": "temperature",
        "prevalence": "estimated",
    },
    "a misspelt key": {"prevalense": "estimated"},
}.items():
    case(CALIBRATIONS, f"options: {what}", "refused")(
        lambda world, decisions=decisions: _decide(world, decisions)
    )


@case(
    CALIBRATIONS,
    "options: validate images of one label",
    "counted",
    shows='"reason": "one label value only on the images to calibrate on"',
)
def _one_label(world: World) -> list[str]:
    columns = ["image_id", "split"]
    images = pd.read_parquet(world.base.prepared / "images.parquet", columns=columns)
    place = images.groupby("split").cumcount() % 2
    path = world.here / "labels.csv"
    edema = place.where(images["split"] != "validate", 0)
    images[["image_id"]].assign(Edema=edema).to_csv(path, index=False)
    return [*_decide(world, {}), "--labels", str(path)]
