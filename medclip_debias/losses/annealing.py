"""How strongly a correction acts in the course of a run.

Removing all true false negatives helps a run early and costs it late (docs/studies), so that any
policy and any target can be faded out.
"""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from medclip_debias.config import Settings
from medclip_debias.losses.batch import ContrastiveBatch


class Schedule(Settings):
    """Strength by the share of the run that is done.

    0 before ``start``; from there 1 (``constant``), or from 1 down to 0 at ``end`` along a line
    (``linear``) or half a cosine; 0 after ``end``.

    Example:
        >>> fading = Schedule(end=0.4, shape="linear")
        >>> [fading.strength(k / 10) for k in (0, 2, 4, 9)]
        [1.0, 0.5, 0.0, 0.0]
    """

    start: float = Field(0.0, ge=0, le=1)
    end: float = Field(1.0, ge=0, le=1)
    shape: Literal["constant", "linear", "cosine"] = "constant"

    @model_validator(mode="after")
    def _takes_time(self) -> Schedule:
        if self.end <= self.start:
            raise ValueError(f"end {self.end} must be larger than start {self.start}")
        return self

    def strength(self, done: float) -> float:
        """Strength in [0, 1].

        Args:
            done: share of the run's steps that lie before this one, in [0, 1].
        """
        if done < self.start or (done >= self.end and self.end < 1):
            return 0.0
        if self.shape == "constant":
            return 1.0
        place = min((done - self.start) / (self.end - self.start), 1.0)
        return 1 - place if self.shape == "linear" else 0.5 * (1 + math.cos(math.pi * place))


def strength(schedule: Schedule | None, batch: ContrastiveBatch) -> float:
    """Strength at the batch's ``done``; 1 without a schedule."""
    return 1.0 if schedule is None else schedule.strength(batch["done"])
