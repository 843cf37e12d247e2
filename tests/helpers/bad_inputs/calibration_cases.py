"""Calibrations (`calibrate`, the option `decisions` of `evaluate`), and what `view` refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from bad_inputs.case import case, cases
from bad_inputs.world import World
from coco import write_coco

CALIBRATIONS = "calibrations"
PROMPTS = {"positive": ["Pulmonary edema"], "negative": ["No pulmonary edema"]}
EDEMA = {
    "map": {"kind": "line", "slope": 9.0, "intercept": 0.0},
    "positive": [0.1, 0.2],
    "negative": [-0.1, 0.0],
}


def _calibrate(world: World, *words: str) -> list[str]:
    given = [str(world.base.run / "model"), str(world.base.prepared)]
    return ["calibrate", *given, "--out", str(world.out / "c.json"), *words]


cases(
    CALIBRATIONS,
    _calibrate,
    {
        "a prevalence of 0": ("--prevalence", "Edema=0"),
        "a prevalence in percent": ("--prevalence", "Edema=5"),
        "a prevalence that is no number": ("--prevalence", "Edema=few"),
        "a prevalence without a class": ("--prevalence", ".05"),
        "a prevalence of a class that has no prompts": ("--prevalence", "Oedema=.05"),
        "the training split": ("--split", "train"),
        "an unknown method": ("--set", "method=plat"),
        "a coverage of 1": ("--set", "coverage=1"),
    },
)


@case(CALIBRATIONS, "labels of one value")
def _one_value(world: World) -> list[str]:
    images = pd.read_parquet(world.base.prepared / "images.parquet", columns=["image_id"])
    path = world.file("labels.csv", images.assign(Edema=1).to_csv(index=False))
    return _calibrate(world, "--split", "test", "--labels", str(path), "--classes", "Edema")


def _decide(world: World, **decisions: Any) -> list[str]:
    path = world.file("options.yaml", {"decisions": decisions})
    return world.evaluate("--options", str(path), "--classes", "Edema")


def _file(world: World, change: Callable[[dict[str, Any]], Any]) -> list[str]:
    """A whole calibration of the run's model, changed."""
    hashes = world.base.results
    content = {
        "model_hash": hashes["model_hash"],
        "data_hash": hashes["data_hash"],
        "split": "validate",
        "prompts": {"name": "mine", "classes": {"Edema": PROMPTS}},
        "method": "platt",
        "classes": {"Edema": EDEMA},
    }
    return _decide(world, calibration=str(world.file("calibration.json", change(content))))


def _edema(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda c: c | {"classes": {"Edema": c["classes"]["Edema"] | changes}}


def _prompted(**classes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda c: c | {"prompts": {"name": "x", "classes": classes}}


cases(
    CALIBRATIONS,
    _file,
    {
        "a list": lambda c: [c],
        "without its model": lambda c: {k: v for k, v in c.items() if k != "model_hash"},
        "of another model": lambda c: c | {"model_hash": "0" * 16},
        "of other prompts": _prompted(Edema=PROMPTS | {"negative": ["Dry"]}),
        "of another class": _prompted(Mass=PROMPTS),
        "without a class": lambda c: c | {"classes": {}},
        "a score that is no number": _edema(positive=[float("nan"), 0.2]),
        "scores that fall": _edema(positive=[0.2, 0.1]),
        "no positive score": _edema(positive=[]),
        "a slope that falls": _edema(map={"kind": "line", "slope": -9.0, "intercept": 0.0}),
        "steps that fall": _edema(map={"kind": "steps", "at": [0, 1], "probability": [0.6, 0.4]}),
        "a target of 0": _edema(target=0),
        "of a later version": lambda c: c | {"format": 2},
    },
    before="file: ",
)
cases(CALIBRATIONS, _decide, {"file: not there": {"calibration": "nowhere.json"}})
cases(
    CALIBRATIONS,
    _decide,
    {
        "a prevalence of 1": {"prevalence": {"Edema": 1}},
        "a prevalence of another class": {"prevalence": {"Oedema": 0.1}},
        "a prevalence estimated after a temperature": {
            **{"method": "temperature", "prevalence": "estimated"}
        },
        "a misspelt key": {"prevalense": "estimated"},
    },
    before="options: ",
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
    edema = place.where(images["split"] != "validate", 0)
    table = images[["image_id"]].assign(Edema=edema)
    return [*_decide(world), "--labels", str(world.file("labels.csv", table.to_csv(index=False)))]


# -------------------------------------------------------------------------------------- viewer

VIEWER = "viewer"


def _view(world: World, *words: str) -> list[str]:
    return ["view", str(world.base.run / "model"), "--port", "0", *words]


cases(
    VIEWER,
    _view,
    {
        "a second model that is not there": ("--beside", "nowhere"),
        "a calibration that is not there": ("--calibration", "nowhere.json"),
        "true boxes without images": ("--boxes", "boxes.json"),
        "a folder of images that is not there": ("--images", "nowhere"),
        "a token file that is not there": ("--token-file", "nowhere"),
    },
)


@case(VIEWER, "true boxes of other images")
def _other_boxes(world: World) -> list[str]:
    world.picture("view1_frontal.png")
    path = write_coco(world.here / "boxes.json", ("another.png", [("A", [1, 2, 3, 4])], (40, 40)))
    return _view(world, "--images", str(world.here), "--boxes", str(path))


@case(VIEWER, "a calibration of another model")
def _other_calibration(world: World) -> list[str]:
    content = {
        "model_hash": "0" * 16,
        "data_hash": "0" * 16,
        "split": "validate",
        "prompts": {"name": "a", "classes": {"A": {"positive": ["A."], "negative": ["No A."]}}},
        "method": "platt",
        "classes": {"A": EDEMA | {"positive": [0.1], "negative": [-0.1]}},
    }
    return _view(world, "--calibration", str(world.file("calibration.json", content)))
