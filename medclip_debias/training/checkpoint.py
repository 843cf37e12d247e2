"""Checkpoints: written whole or not at all, hashed, the last two kept, read without pickled code.

Beside ``step_00000500.pt`` lies ``step_00000500.pt.sha256``. The hash is written first, so a
process that dies between the two leaves a hash without a file, never a file without its hash.

`RunState` is what they hold beside the trainer's state: the best validation, and the sums behind
the next row of the log.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from medclip_debias.errors import UserError, explained
from medclip_debias.evaluation.catalogue import find
from medclip_debias.files import atomic_file, write_text

KEEP = 2
_NAME = re.compile(r"step_(\d{8})\.pt")
_BEST = re.compile(r"best_(\d{8})\.pt(\.sha256)?")


def best_path(folder: Path, step: int) -> Path:
    """Name of the best weights: by their step, so that better ones take no file's place."""
    return folder / f"best_{step:08d}.pt"


def hash_path(path: Path) -> Path:
    """Name of the file that holds a checkpoint's SHA-256."""
    return path.with_name(path.name + ".sha256")


def checkpoints(folder: Path) -> list[Path]:
    """Checkpoints in ``folder``, oldest first; without the best one."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in paths if _NAME.fullmatch(path.name) and path.is_file())


def drop_checkpoints(folder: Path, *, keep: int = 0) -> None:
    """Remove all but the last ``keep`` checkpoints, with their hashes; keep 0 also the best."""
    paths = checkpoints(folder)
    for old in paths[: len(paths) - keep]:
        old.unlink()
        hash_path(old).unlink(missing_ok=True)
    if keep == 0:
        drop_best(folder)


def drop_best(folder: Path, keep: Collection[int] = ()) -> None:
    """Remove the weights that were the best once, but those after the steps ``keep``."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        match = _BEST.fullmatch(path.name)
        if match and int(match[1]) not in keep and path.is_file():
            path.unlink()


def save_checkpoint(folder: Path, step: int, state: dict[str, Any]) -> Path:
    """Write the state after ``step`` steps atomically, then drop all but the last two."""
    path = folder / f"step_{step:08d}.pt"
    save_state(path, state | {"step": step})
    drop_checkpoints(folder, keep=KEEP)
    return path


def save_state(path: Path, state: dict[str, Any]) -> None:
    """Write ``state`` and its hash atomically; where that fails, ``path`` is untouched."""
    try:
        with atomic_file(path) as temporary:
            with temporary.open("wb") as stream:  # a path's name would stand in what is written
                torch.save(state, stream)
            write_text(hash_path(path), _sha256(temporary) + "\n")
        handle = os.open(path.parent, os.O_RDONLY)  # the folder's own entries, to the disk
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise UserError(
            f"{path}: this checkpoint cannot be written ({reason}); free some space or fix the"
            " folder, then run the same command again: the checkpoints before it are intact."
        ) from error


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint whose hash is right."""
    digest = hash_path(path)
    if not path.is_file():
        raise UserError(f"{path}: there is no such checkpoint.")
    if not digest.is_file():
        raise UserError(f"{path}: its hash {digest.name} is missing, so it cannot be verified.")
    if _sha256(path) != digest.read_text(encoding="utf-8", errors="replace").strip():
        raise UserError(f"{path}: is damaged, its content does not have the hash beside it.")
    with explained(f"{path}: cannot be read as a checkpoint", Exception):
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or "step" not in state:
            raise ValueError
    return state


def load_newest(folder: Path, warn: Callable[[str], None]) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint that is whole; None where there are none at all."""
    paths = checkpoints(folder)
    for path in reversed(paths):
        try:
            return path, load_checkpoint(path)
        except UserError as error:
            if path != paths[0]:
                warn(f"{error} Resuming from the checkpoint before it.")
    if not paths:
        return None
    raise UserError(
        f"{folder}: every checkpoint is damaged ({', '.join(path.name for path in paths)}); "
        "restore one from a copy, or start over with --fresh."
    )


@dataclass
class BestSoFar:
    """The best validation of a run by one metric, and how many came since (``waited``)."""

    metric: str
    patience: int | None
    value: float | None = None
    step: int = 0
    waited: int = 0

    def see(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Take note of a validation after ``step`` steps; return whether it is the best so far.

        Raises:
            UserError: it has no such metric.
        """
        value = metrics.get(self.metric, math.nan)
        if math.isnan(value):
            raise UserError(
                f"The validation gave no '{self.metric}' (it gave {', '.join(metrics) or 'none'}); "
                "choose another train.best_metric, or train.validate_every=0."
            )
        sign = -1 if find("validation", self.metric).lower_is_better else 1
        if self.value is None or sign * value > sign * self.value:
            self.value, self.step, self.waited = value, step, 0
            return True
        self.waited += 1
        return False

    @property
    def gives_up(self) -> bool:
        """Whether the run is to end."""
        return self.patience is not None and self.waited >= self.patience

    def verdict(self) -> str:
        """What the last validation was, in words."""
        if not self.waited or self.value is None:
            return "the best so far"
        words = f"best is step {self.step} ({self.metric} {self.value:.4g})"
        if self.patience:
            words += f"; {self.waited} of {self.patience} in a row without a better one"
        return words


class Window:
    """Means since the last row, of each figure over the steps that gave it."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self._counts: Counter[str] = Counter()

    def add(self, values: Mapping[str, torch.Tensor]) -> None:
        """Add one step's scalars; nothing is copied off the device yet."""
        for name, value in values.items():
            value = value.detach().double()
            # A restored sum is in memory; it follows the steps' metrics to their device.
            if name in self._sums:
                value = self._sums[name].to(value.device) + value
            self._sums[name] = value
        self._counts.update(values.keys())

    def means(self) -> dict[str, float]:
        result = {name: (value / self._counts[name]).item() for name, value in self._sums.items()}
        self._sums, self._counts = {}, Counter()
        return result

    def content(self) -> dict[str, Any]:
        sums = {name: value.cpu() for name, value in self._sums.items()}
        return {"sums": sums, "counts": dict(self._counts)}

    def restore(self, content: Mapping[str, Any]) -> None:
        self._sums, self._counts = dict(content["sums"]), Counter(content["counts"])


@dataclass
class RunState:
    """What checkpoints hold beside the trainer's state (``best``, ``window``), and ``loss``."""

    best: BestSoFar
    window: Window = field(default_factory=Window)
    loss: float = math.nan
    best_at_checkpoint: int = 0

    def content(self) -> dict[str, Any]:
        """For the checkpoint."""
        best = {name: getattr(self.best, name) for name in ("value", "step", "waited")}
        return {"best": best, "window": self.window.content()}

    def restore(self, content: Mapping[str, Any]) -> None:
        """Continue from `content`."""
        best = content["best"]
        self.best.value, self.best.step = best["value"], best["step"]
        self.best.waited = best["waited"]
        self.best_at_checkpoint = self.best.step
        self.window.restore(content["window"])
