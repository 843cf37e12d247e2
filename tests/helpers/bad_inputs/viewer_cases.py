"""What the verb `view` refuses before it serves a page."""

from __future__ import annotations

import json

from bad_inputs.case import case
from bad_inputs.world import World

VIEWER = "viewer"


def _view(world: World, *words: str) -> list[str]:
    return ["view", str(world.base.run / "model"), "--port", "0", *words]


def _images(world: World) -> list[str]:
    world.picture("view1_frontal.png")
    return ["--images", str(world.here)]


for what, words in {
    "a second model that is not there": ["--beside", "nowhere"],
    "a calibration that is not there": ["--calibration", "nowhere.json"],
    "true boxes without images": ["--boxes", "boxes.json"],
    "a folder of images that is not there": ["--images", "nowhere"],
    "a token file that is not there": ["--token-file", "nowhere"],
}.items():
    case(VIEWER, what, "refused")(lambda world, words=words: _view(world, *words))


@case(VIEWER, "true boxes of other images", "refused")
def _other_boxes(world: World) -> list[str]:
    coco = {
        "images": [{"id": 1, "file_name": "another.png", "width": 40, "height": 40}],
        "categories": [{"id": 1, "name": "Opacity"}],
        "annotations": [
            {"id": 1, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4], "label_text": "A"}
        ],
    }
    images = _images(world)
    path = world.here / "boxes.json"
    path.write_text(json.dumps(coco), encoding="utf-8")
    return _view(world, *images, "--boxes", str(path))


@case(VIEWER, "a calibration of another model", "refused")
def _other_calibration(world: World) -> list[str]:
    content = {
        "model_hash": "0" * 16,
        "data_hash": "0" * 16,
        "split": "validate",
        "prompts": {"name": "a", "classes": {"A": {"positive": ["A."], "negative": ["No A."]}}},
        "method": "platt",
        "classes": {
            "A": {
                "map": {"kind": "line", "slope": 9.0, "intercept": 0.0},
                "positive": [0.1],
                "negative": [-0.1],
            }
        },
    }
    path = world.here / "calibration.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return _view(world, "--calibration", str(path))
