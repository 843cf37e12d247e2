"""Other groups' folders as transformers writes them, damaged or of another kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_inputs.case import case
from bad_inputs.world import World

PEER = "other groups' folders (import-model)"


def _folder(world: World, **config: Any) -> Path:
    """A folder whose weights are of nothing."""
    import torch
    from safetensors.torch import save_file

    folder = world.here / "published"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "siglip"} | config))
    (folder / "preprocessor_config.json").write_text(json.dumps({"size": 64}))
    save_file({"odd": torch.zeros(3)}, folder / "model.safetensors")
    return folder


def _import(world: World, folder: Path, kind: str = "siglip") -> list[str]:
    return ["import-model", kind, str(folder), "--out", str(world.out)]


def _changed(change: Callable[[Path], None]) -> Callable[[World], list[str]]:
    def build(world: World) -> list[str]:
        folder = _folder(world)
        change(folder)
        return _import(world, folder)

    return build


def _pickle(folder: Path) -> None:
    import torch

    (folder / "model.safetensors").unlink()
    torch.save({"x": Path("code")}, folder / "pytorch_model.bin")


def _written(name: str, content: bytes) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return change


CHANGES: dict[str, Callable[[Path], None]] = {
    "tensors of nothing that is known": lambda _: None,
    "config.json is no JSON": _written("config.json", b"{"),
    "no config.json": lambda folder: (folder / "config.json").unlink(),
    "no weights": lambda folder: (folder / "model.safetensors").unlink(),
    "weights cut off": _written("model.safetensors", b"\0" * 9),
    "weights as a pickle with objects": _pickle,
}
for what, change in CHANGES.items():
    case(PEER, what, "refused")(_changed(change))

case(PEER, "a folder of another kind", "refused")(
    lambda world: _import(world, _folder(world, model_type="blip"))
)
case(PEER, "no such folder", "refused")(lambda world: _import(world, world.here / "nowhere"))
case(PEER, "RAD-DINO's kind with a SigLIP's folder", "refused")(
    lambda world: _import(world, _folder(world), "rad_dino")
)
