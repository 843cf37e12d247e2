"""Other groups' files and folders (`import-model`): of another layout, incomplete, damaged."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_inputs.case import cases
from bad_inputs.world import World

PEERS = "other groups' models"
PROCESSOR: dict[str, Any] = {
    "size": {"shortest_edge": 28},
    "crop_size": {"height": 28, "width": 28},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


def _import(
    world: World,
    kind: str,
    processor: str | None = json.dumps(PROCESSOR),
    patches: tuple[int, ...] = (16, 3, 14, 14),
) -> list[str]:
    """A DINOv2's first tensors as RadZero names them, and nothing else."""
    import torch

    trunk, path = "vision_model.", world.here / "weights.pt"
    torch.save(
        {
            f"{trunk}embeddings.patch_embeddings.projection.weight": torch.zeros(patches),
            f"{trunk}embeddings.position_embeddings": torch.zeros(1, 5, 16),
            f"{trunk}encoder.layer.0.mlp.fc1.weight": torch.zeros(64, 16),
        },
        path,
    )
    words = ["import-model", kind, str(path)]
    words += ["--text", str(world.base.language_model), "--out", str(world.out)]
    if processor is not None:
        words += ["--config", str(world.file("preprocessor_config.json", processor))]
    return words


def _processor(**changes: Any) -> tuple[str, str]:
    return "radzero", json.dumps(PROCESSOR | changes)


cases(
    PEERS,
    _import,
    {
        "carzero from RadZero's file": "carzero",
        "radzero without its blocks": "radzero",
        "radzero whose patches' filters are flat": {"kind": "radzero", "patches": (16, 588)},
        "radzero without its preprocessing": ("radzero", None),
        "medklip without its book": ("medklip", None),
        "kad with an empty question in its book": ("kad", json.dumps({"edema": " "})),
    },
)
cases(
    PEERS,
    _import,
    {
        "of one channel": _processor(image_mean=[0.5], image_std=[0.5]),
        "of no square": _processor(size={"height": 42, "width": 56}),
        "of another patch size": _processor(crop_size=27),
        "with a filter that is not offered": _processor(resample=0),
        "with a size of millions": _processor(
            size={"shortest_edge": 28_000_000}, crop_size=28_000_000
        ),
    },
    before="a preprocessor_config.json ",
)

# ------------------------------------------------------------------- folders of transformers


def _folder(
    world: World, change: Callable[[Path], object] = lambda _: None, model_type: str = "siglip"
) -> list[str]:
    """A folder whose weights are of nothing."""
    import torch
    from safetensors.torch import save_file

    folder = world.file("published/config.json", {"model_type": model_type}).parent
    world.file("published/preprocessor_config.json", {"size": 64})
    save_file({"odd": torch.zeros(3)}, folder / "model.safetensors")
    change(folder)
    return ["import-model", "siglip", str(folder), "--out", str(world.out)]


def _pickle(folder: Path) -> None:
    import torch

    (folder / "model.safetensors").unlink()
    torch.save({"x": Path("code")}, folder / "pytorch_model.bin")


cases(
    "other groups' folders (import-model)",
    _folder,
    {
        "tensors of nothing that is known": {},
        "no config.json": lambda folder: (folder / "config.json").unlink(),
        "no weights": lambda folder: (folder / "model.safetensors").unlink(),
        "weights as a pickle with objects": _pickle,
        "a folder of another kind": {"model_type": "blip"},
        "no such folder": lambda folder: folder.rename(folder.with_name("elsewhere")),
    },
)
