"""Which validation was the best so far, and whether it is time to give up on a better one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import find


class BestSoFar:
    """The best validation of a run, by one metric.

    Attributes:
        value: the best value, None before the first validation.
        step: steps done when it was reached.
        waited: validations since then.
    """

    def __init__(self, metric: str, patience: int | None) -> None:
        self.metric = metric
        self.patience = patience
        self.value: float | None = None
        self.step = 0
        self.waited = 0

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

    def state(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"value": self.value, "step": self.step, "waited": self.waited}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`."""
        self.value, self.step, self.waited = state["value"], state["step"], state["waited"]
