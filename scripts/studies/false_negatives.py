"""What does removal gain InfoNCE, and is it the sentence that counts? Few arms, many seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.doses import training_counts
from medclip_debias.experiments.experiment import Cell, Row, Table
from studies.phantom import (
    BASELINE,
    PhantomFolder,
    PhantomStudy,
    against_controls,
    compared,
    eta_true,
)
from studies.study import spread, where


class FalseNegatives(PhantomStudy):
    """Removal by truth and by label, the paper's method and its controls against InfoNCE."""

    name: ClassVar[str] = "false-negatives"

    def cells(self) -> list[dict[str, Any]]:
        """How many negatives are false, and every arm, for each seed."""
        s = self.settings
        rates = [
            {"part": "rate", "seed": seed, "data": self.cell({}, seed)["data"]} for seed in s.seeds
        ]
        return rates + [
            self.cell(None, seed, replicate=replicate, part="train", method=arm)
            for seed in s.seeds
            for replicate in range(s.replicates)
            for arm in s.arms
        ]

    def measure(self, cell: Cell) -> Row:
        """Train and measure, or count."""
        if cell["part"] == "train":
            return super().measure(cell)
        return false_rate(PhantomFolder(self.shared_folder(cell)))

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """How many are false, what removing them gains, what the controls leave."""
        rates, groups = where(rows, part="rate"), by_method(where(rows, part="train"))
        body = [[spread(rates, name, 2) for name in ("mean", "q05", "q50", "q95")]]
        head = ["mean", "5th percentile", "median", "95th percentile"]
        return [
            Table("Share of a sentence's negatives that are false, over sentences", head, body),
            *compared(f"{len(groups[BASELINE])} seeds", groups, BASELINE),
            *against_controls("Controls of equal dose", groups),
        ]


def false_rate(place: PhantomFolder) -> Row:
    """Share of a training sentence's negatives that agree with it.

    Returns:
        ``mean``, ``q05``, ``q50`` and ``q95`` of the true class probability over the sentences
        of the training studies, each occurrence counted.
    """
    counts = training_counts(place.open())
    values = np.repeat(list(eta_true(place).values()), list(counts.values()))
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95]).tolist()
    return {"mean": float(values.mean()), "q05": low, "q50": middle, "q95": high}
