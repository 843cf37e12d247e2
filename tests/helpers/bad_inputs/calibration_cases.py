"""Calibrations (`calibrate`, the option `decisions` of `evaluate`), and what `view` refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from bad_inputs.case import case, cases
from bad_inputs.world import World

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
        "a prevalence that is no number": ("--prevalence", "Edema=few"),
        "a prevalence without a class": ("--prevalence", ".05"),
        "a prevalence of a class that has no prompts": ("--prevalence", "Oedema=.05"),
        "the training split": ("--split", "train"),
        "an unknown method": ("--set", "method=plat"),
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


def _whole(world: World) -> dict[str, Any]:
    """A whole calibration of the run's model."""
    hashes = {name: world.base.results[name] for name in ("model_hash", "data_hash")}
    return hashes | {
        "split": "validate",
        "prompts": {"name": "mine", "classes": {"Edema": PROMPTS}},
        "method": "platt",
        "classes": {"Edema": EDEMA},
    }


def _file(world: World, change: Callable[[dict[str, Any]], Any]) -> list[str]:
    path = world.file("calibration.json", change(_whole(world)))
    return _decide(world, calibration=str(path))


def _edema(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda c: c | {"classes": {"Edema": c["classes"]["Edema"] | changes}}


def _prompted(**classes: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda c: c | {"prompts": {"name": "x", "classes": classes}}


cases(
    CALIBRATIONS,
    _file,
    {
        "of another model": lambda c: c | {"model_hash": "0" * 16},
        "of other prompts": _prompted(Edema=PROMPTS | {"negative": ["Dry"]}),
        "of another class": _prompted(Mass=PROMPTS),
        "scores that fall": _edema(positive=[0.2, 0.1]),
        "steps that fall": _edema(map={"kind": "steps", "at": [0, 1], "probability": [0.6, 0.4]}),
    },
    before="file: ",
)
cases(
    CALIBRATIONS,
    _decide,
    {
        "file: not there": {"calibration": "nowhere.json"},
        "options: a prevalence estimated after a temperature": {
            **{"method": "temperature", "prevalence": "estimated"}
        },
    },
)


@case(CALIBRATIONS, "options: another method than the file's")
def _other_method(world: World) -> list[str]:
    path = world.file("calibration.json", _whole(world))
    return _decide(world, calibration=str(path), method="isotonic")


@case(
    CALIBRATIONS,
    "options: validate images of one label",
    '"reason": "one label value only on the images to calibrate on"',
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
        "true boxes without images": ("--boxes", "boxes.json"),
        "a folder of images that is not there": ("--images", "nowhere"),
        "a token file that is not there": ("--token-file", "nowhere"),
    },
)


@case(VIEWER, "a calibration of another model")
def _other_calibration(world: World) -> list[str]:
    content = _whole(world) | {"model_hash": "0" * 16}
    return _view(world, "--calibration", str(world.file("calibration.json", content)))
