"""What is declared of one metric."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

Unit = Literal["share", "ratio", "rank", "error"]
"""``share``: from 0 to 1. ``ratio``: of two quantities of one kind, without bound. ``rank``: place
in a list, from 1. ``error``: a difference of shares, from 0 to 1, 0 best."""

_BOUNDS: dict[Unit, tuple[float, float]] = {
    "share": (0.0, 1.0),
    "error": (0.0, 1.0),
    "rank": (1.0, math.inf),
    "ratio": (-math.inf, math.inf),
}

MEASURED: Literal["measured"] = "measured"

PaperColumn = Literal["AUC", "ACC", "CNR", "mIoU", "Recall", "MedR"]
"""A column of Table 1 of Wang et al. 2023."""


@dataclass(frozen=True)
class Metric:
    """One metric of an evaluation.

    Attributes:
        protocol: that gives it; ``validation`` for what a training run measures on the way.
        name: in the table of results, and of its statistic.
        title: what tables and plots call it.
        definition: one sentence.
        unit: what its numbers are.
        lower_is_better: True for ranks and errors.
        digits: decimals shown.
        alias: what task cards, grids and command lines call it behind the protocol, where that is
            not ``name``.
        per_class: name of the same metric of one class, where ``name`` is the mean over classes
            (the sum, where the definition says so).
        item: column of the protocol's item table that holds it for one item, if there is one.
        chance: what a model without any skill gets: a number, or `MEASURED` where it depends on
            the data and stands in the table, in the group ``chance``.
        paper: column of the paper's Table 1 that it is.
        terminal: whether ``evaluate`` prints it.
        required: whether every results file that has the protocol has it.
        compared: whether `compare` computes it again from the item tables.
        lowest: value that it cannot fall below, where that is not its unit's.
        seeds_needed: seeds without which no sentence and no star of an experiment speaks of it,
            because it varies from seed to seed more than from method to method.
    """

    protocol: str
    name: str
    title: str
    definition: str
    unit: Unit
    lower_is_better: bool = False
    digits: int = 3
    alias: str = ""
    per_class: str = ""
    item: str = ""
    chance: Literal["measured"] | float | None = None
    paper: PaperColumn | None = None
    terminal: bool = False
    required: bool = False
    compared: bool = True
    lowest: float | None = None
    seeds_needed: int = 0

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value that it can have, of one item as of the mean.

        >>> Metric("a", "recall", "", "", "share").bounds
        (0.0, 1.0)
        """
        low, high = _BOUNDS[self.unit]
        return low if self.lowest is None else self.lowest, high

    @property
    def key(self) -> str:
        """What task cards, grids and command lines call it.

        >>> Metric("a", "recall", "", "", "share", alias="report.recall").key
        'a.report.recall'
        """
        return f"{self.protocol}.{self.alias or self.name}"
