"""What a run knows beside its trainer: its best validation, and the sums behind its next row."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import find


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
        result = {name: (value / self.steps).item() for name, value in self._sums.items()}
        self._sums, self.steps = {}, 0
        return result

    def content(self) -> dict[str, Any]:
        sums = {name: value.cpu() for name, value in self._sums.items()}
        return {"sums": sums, "steps": self.steps}

    def restore(self, content: Mapping[str, Any]) -> None:
        self._sums, self.steps = dict(content["sums"]), int(content["steps"])


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
