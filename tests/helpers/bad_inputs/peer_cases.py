"""Other groups' files (`import-model`): of another layout, without what they need, damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_inputs.case import case
from bad_inputs.world import World

PEERS = "other groups' models"
PROCESSOR: dict[str, Any] = {
    "size": {"shortest_edge": 28},
    "crop_size": {"height": 28, "width": 28},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def _weights(path: Path, patches: tuple[int, ...]) -> Path:
    """A DINOv2's first tensors as RadZero names them, and nothing else."""
    import torch

    trunk = "vision_model."
    torch.save(
        {
            f"{trunk}embeddings.patch_embeddings.projection.weight": torch.zeros(patches),
            f"{trunk}embeddings.position_embeddings": torch.zeros(1, 5, 16),
            f"{trunk}encoder.layer.0.mlp.fc1.weight": torch.zeros(64, 16),
        },
        path,
    )
    return path


def _import(
    kind: str,
    processor: str | None = json.dumps(PROCESSOR),
    patches: tuple[int, ...] = (16, 3, 14, 14),
) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        words = ["import-model", kind, str(_weights(world.here / "weights.pt", patches))]
        words += ["--text", str(world.base.language_model), "--out", str(world.out)]
        if processor is not None:
            path = world.here / "preprocessor_config.json"
            path.write_text(processor)
            words += ["--config", str(path)]
        return words

    return build


for kind in ("carzero", "conns", "cxr_clip", "mgca", "kad", "medklip", "afloc"):
    case(PEERS, f"{kind} from RadZero's file", "refused")(_import(kind))
case(PEERS, "radzero without its blocks", "refused")(_import("radzero"))
for what, patches in {
    "flat": (16, 588),
    "empty": (0, 3, 14, 14),
    "of two colours": (16, 2, 14, 14),
}.items():
    case(PEERS, f"radzero whose patches' filters are {what}", "refused")(
        _import("radzero", patches=patches)
    )
case(PEERS, "medklip without its book", "refused")(_import("medklip", None))
for what, text in {
    "that is empty": "{}",
    "that is a list": json.dumps(["edema"]),
    "with a question that is no text": json.dumps({"edema": 3}),
    "with an empty question": json.dumps({"edema": " "}),
}.items():
    for kind in ("kad", "medklip"):
        case(PEERS, f"{kind} with a book {what}", "refused")(_import(kind, text))
case(PEERS, "radzero without its preprocessing", "refused")(_import("radzero", None))
for what, text in {
    "that is no JSON": "{",
    "of one channel": json.dumps(PROCESSOR | {"image_mean": [0.5], "image_std": [0.5]}),
    "of another patch size": json.dumps(PROCESSOR | {"crop_size": 27}),
    "with a filter that is not offered": json.dumps(PROCESSOR | {"resample": 0}),
    "with a size that is no number": json.dumps(PROCESSOR | {"size": {"shortest_edge": "28"}}),
    "with a size of millions": json.dumps(
        PROCESSOR | {"size": {"shortest_edge": 28_000_000}, "crop_size": 28_000_000}
    ),
    "with a mean that is no number": json.dumps(PROCESSOR | {"image_mean": ["a", "b", "c"]}),
    "with a deviation of 0": json.dumps(PROCESSOR | {"image_std": [0.5, 0.0, 0.5]}),
}.items():
    case(PEERS, f"a preprocessor_config.json {what}", "refused")(_import("radzero", text))
