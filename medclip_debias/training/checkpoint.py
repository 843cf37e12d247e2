"""Checkpoints: written whole or not at all, the last two kept, read without pickled code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from medclip_debias.errors import explained
from medclip_debias.files import atomic_file

KEEP = 2
_NAME = re.compile(r"step_(\d{8})\.pt")


def checkpoint_path(folder: Path, step: int) -> Path:
    """Name of the checkpoint after ``step`` steps."""
    return folder / f"step_{step:08d}.pt"


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in ``folder``, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write the state after ``step`` steps atomically, then drop all but the last two."""
    path = checkpoint_path(folder, step)
    with atomic_file(path) as temporary:
        torch.save(state | {"step": step}, temporary)
    for old in checkpoints(folder)[:-KEEP]:
        old.unlink()
    return path


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint.

    Raises:
        UserError: the file is damaged or is no checkpoint.
    """
    with explained(
        f"{path}: cannot be read as a checkpoint; remove it to resume from the one before",
        Exception,
    ):
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or "step" not in state:
            raise ValueError
    return state
