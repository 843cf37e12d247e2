"""Metrics of a run: one CSV row and TensorBoard scalars every ``log_every`` steps."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from medclip_debias.files import atomic_file


class MetricsLog:
    """Append rows to ``metrics.csv`` and scalars to ``tensorboard/``.

    On resume at step k the rows after k are dropped: they belong to steps that are taken again.
    """

    def __init__(self, folder: Path, resume_at: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.path = folder / "metrics.csv"
        self._columns = self._keep_until(resume_at)
        self._board = SummaryWriter(str(folder / "tensorboard"), purge_step=resume_at + 1)

    def write(self, row: Mapping[str, float]) -> None:
        """Add one row; the first row fixes the columns."""
        first = not self._columns
        self._columns = self._columns or list(row)
        with self.path.open("a", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, self._columns)
            if first:
                writer.writeheader()
            writer.writerow({name: _number(row[name]) for name in self._columns})
        for name, value in row.items():
            if name != "step":
                self._board.add_scalar(name, value, int(row["step"]))

    def _keep_until(self, step: int) -> list[str]:
        if not self.path.is_file() or step == 0:
            self.path.unlink(missing_ok=True)
            return []
        with self.path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            columns = list(reader.fieldnames or [])
            rows = [row for row in reader if row["step"].isdigit() and int(row["step"]) <= step]
        with atomic_file(self.path) as temporary, temporary.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, columns)
            writer.writeheader()
            writer.writerows(rows)
        return columns

    def __enter__(self) -> MetricsLog:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._board.close()


class Window:
    """Means over the steps since the last row, and how many there were."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}
        self.steps = 0

    def add(self, values: Mapping[str, torch.Tensor]) -> None:
        """Add one step's scalars; nothing is copied off the device yet."""
        for name, value in values.items():
            value = value.detach().double()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        self.steps += 1

    def means(self) -> dict[str, float]:
        """Means since the last call; starts anew."""
        result = {name: (value / self.steps).item() for name, value in self._sums.items()}
        self._sums, self.steps = {}, 0
        return result


def _number(value: Any) -> str:
    return str(int(value)) if float(value).is_integer() else f"{value:.6g}"
