"""Metrics of a run: CSV rows, TensorBoard scalars, and Weights & Biases where it is asked for."""

from __future__ import annotations

import csv
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.files import atomic_file

_log = logging.getLogger(__name__)


class RunLog:
    """Everything a run writes down, of training (``metrics.csv``) and of ``validation.csv``.

    Only numbers leave it, and to Weights & Biases also the settings it is given: never a
    report's text.

    Args:
        folder: of the run.
        resume_at: rows after this step are dropped: they belong to steps that are taken again.
        wandb: ``off``, ``offline`` (files only) or ``online``.
        project: of Weights & Biases.
        settings: shown there.
        warn: called with a sentence about a table whose rows were lost.

    Raises:
        UserError: Weights & Biases is asked for and not installed, or a file cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        resume_at: int,
        *,
        wandb: Literal["off", "offline", "online"] = "off",
        project: str = "",
        settings: Mapping[str, Any] | None = None,
        warn: Callable[[str], None] = _log.warning,
    ) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._far = _start_wandb(folder, wandb, project, settings or {}) if wandb != "off" else None
        self._training = _CsvLog(folder / "metrics.csv", resume_at, warn)
        self._validation = _CsvLog(folder / "validation.csv", resume_at, warn)
        board = folder / "tensorboard"
        with _writable(board):
            self._board = SummaryWriter(str(board), purge_step=resume_at + 1)

    def write(self, row: Mapping[str, float]) -> None:
        """Add one row of training, with its ``step``."""
        self._write(self._training, row, "")

    def write_validation(self, row: Mapping[str, float]) -> None:
        """Add one row of validation, with its ``step``."""
        self._write(self._validation, row, "validation/")

    def write_picture(self, name: str, picture: NDArray[np.uint8], step: int) -> None:
        """Add a picture ``[H, W, 3]`` to TensorBoard; it goes nowhere else."""
        with _writable(Path(self._board.log_dir)):
            self._board.add_image(name, picture, step, dataformats="HWC")

    def _write(self, table: _CsvLog, row: Mapping[str, float], prefix: str) -> None:
        table.write(row)
        step = int(row["step"])
        scalars = {prefix + name: value for name, value in row.items() if name != "step"}
        with _writable(Path(self._board.log_dir)):
            for name, value in scalars.items():
                self._board.add_scalar(name, value, step)
        if self._far is not None:
            self._far.log(scalars, step=step)

    def __enter__(self) -> RunLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            with _writable(Path(self._board.log_dir)):
                self._board.close()
        except UserError:
            if kind is None:  # else there is something more important to say
                raise
        if self._far is not None:
            self._far.finish(exit_code=0 if kind is None else 1)


def _start_wandb(
    folder: Path, mode: Literal["offline", "online"], project: str, settings: Mapping[str, Any]
) -> Any:
    try:
        import wandb
    except ImportError:
        raise UserError(
            "train.wandb is set, but Weights & Biases is not installed; install "
            "medclip-debias[wandb], or set train.wandb=off."
        ) from None
    # Numbers only: no console output, no code, no host or user name leaves with them.
    quiet = wandb.Settings(
        console="off", disable_git=True, save_code=False, silent=True, x_disable_meta=True
    )
    return wandb.init(
        project=project,
        name=folder.name,
        dir=str(folder),
        mode=mode,
        config=dict(settings),
        settings=quiet,
    )


@contextmanager
def _writable(path: Path) -> Iterator[None]:
    """Say which file cannot be written, and what to do."""
    try:
        yield
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written ({error.strerror or type(error).__name__}); free some "
            "space, or move away what is there, then run the same command again."
        ) from error


class _CsvLog:
    """A CSV file whose first row fixes the columns."""

    def __init__(self, path: Path, resume_at: int, warn: Callable[[str], None]) -> None:
        self.path = path
        with _writable(path):
            self._columns = self._keep_until(resume_at, warn)

    def write(self, row: Mapping[str, float]) -> None:
        """Add one row.

        Raises:
            UserError: it cannot be written, as on a full disk.
        """
        first = not self._columns
        self._columns = self._columns or list(row)
        with _writable(self.path), self.path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, self._columns)
            if first:
                writer.writeheader()
            writer.writerow({name: _number(row.get(name, math.nan)) for name in self._columns})

    def _keep_until(self, step: int, warn: Callable[[str], None]) -> list[str]:
        if step == 0 or not os.path.lexists(self.path):
            self.path.unlink(missing_ok=True)
            return []
        columns, found = _whole_rows(self.path)
        if "step" not in columns:
            aside = ""
            if self.path.stat().st_size:
                kept = self.path.with_suffix(".damaged.csv")
                self.path.replace(kept)
                aside = f" What is left of it is in {kept.name}."
            else:
                self.path.unlink()
            warn(
                f"{self.path}: is damaged, so its rows up to step {step} are lost; the rows of "
                f"later steps go into a new file.{aside}"
            )
            return []
        rows = [row for row in found if float(row["step"]) <= step]
        with atomic_file(self.path) as temporary, temporary.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, columns)
            writer.writeheader()
            writer.writerows(rows)
        return columns


def last_loss(path: Path) -> float:
    """The ``loss`` of the last row of a table; nan where there is none."""
    rows: list[dict[str, str]] = []
    with suppress(OSError):
        rows = _whole_rows(path)[1]
    return float(rows[-1].get("loss", math.nan)) if rows else math.nan


def _whole_rows(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Columns, and the rows but for one that was cut off when the machine stopped.

    A file that is no table at all has no columns.
    """
    with path.open(newline="", encoding="utf-8", errors="replace") as stream:
        if not stream.readline().endswith("\n"):  # the header itself was cut off
            return [], []
        stream.seek(0)
        reader = csv.DictReader(stream)
        try:
            rows = [row for row in reader if all(map(_is_number, row.values()))]
            return list(reader.fieldnames or []), rows
        except csv.Error:
            return [], []


def _is_number(cell: Any) -> bool:
    try:
        float(cell)
    except (TypeError, ValueError):
        return False
    return True


class Window:
    """Means over the steps since the last row, and how many there were."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self.steps = 0

    def add(self, values: Mapping[str, torch.Tensor]) -> None:
        """Add one step's scalars; nothing is copied off the device yet."""
        for name, value in values.items():
            value = value.detach().double()
            # A restored sum is in memory; it follows the steps' metrics to their device.
            if name in self._sums:
                value = self._sums[name].to(value.device) + value
            self._sums[name] = value
        self.steps += 1

    def means(self) -> dict[str, float]:
        """Means since the last call; starts anew."""
        result = {name: (value / self.steps).item() for name, value in self._sums.items()}
        self._sums, self.steps = {}, 0
        return result

    def state(self) -> dict[str, Any]:
        """For the checkpoint, so that the next row is that of a run which was never stopped."""
        sums = {name: value.cpu() for name, value in self._sums.items()}
        return {"sums": sums, "steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self._sums, self.steps = dict(state["sums"]), int(state["steps"])


def _number(value: Any) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"


def memory(device: torch.device) -> dict[str, float]:
    """Memory in MiB: resident in this process, and the peak on its GPU."""
    import psutil

    metrics = {"memory_mib": psutil.Process().memory_info().rss / 2**20}
    if device.type == "cuda":
        metrics["gpu_peak_mib"] = torch.cuda.max_memory_allocated(device) / 2**20
    return metrics
