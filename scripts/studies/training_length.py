"""Do the answers change with more training? The arms of `false_negatives`, trained for longer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.experiment import Row, Table
from studies.phantom import BASELINE, SHOWN, TABLES, PhantomStudy, compared
from studies.study import where


class TrainingLength(PhantomStudy):
    """What removal by truth, by label and the paper's method gain with the length of training."""

    name: ClassVar[str] = "training-length"

    def cells(self) -> list[dict[str, Any]]:
        """Seeds, lengths, arms."""
        s = self.settings
        return [
            self.cell(None, seed, method=arm, steps=round(length * s.train["steps"]))
            for seed in s.seeds
            for length in s.lengths
            for arm in s.arms
        ]

    def groups(self, rows: Sequence[Row]) -> dict[str, dict[Any, dict[int, Row]]]:
        """Rows of each length."""
        lengths = sorted({row["steps"] for row in rows})
        return {f"{steps:,} steps": by_method(where(rows, steps=steps)) for steps in lengths}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """What each arm gains at each length, and whether the longest training changes it."""
        parts, found, losses = self.groups(rows), [], []
        for title, groups in parts.items():
            found += compared(title, groups, BASELINE)
            own = list(groups[BASELINE].values())
            loss = np.mean([row.get("measured loss", row.get("loss")) for row in own])
            chance = np.log(own[0]["train"]["batch_size"])
            losses.append([title, f"{loss:.3f}", f"{chance:.3f}"])
        found.append(Table(f"{BASELINE}'s loss at the end", ["", "loss", "chance"], losses))
        (first, *_, last), arms = parts.values(), list(next(iter(parts.values())))[1:]
        pairs = {arm: (_gains(last, arm), _gains(first, arm)) for arm in arms}
        title = f"Difference to {BASELINE} in the longest training minus that in the shortest"
        return [*found, TABLES.contrast_table(title, pairs)]


def _gains(groups: dict[Any, dict[int, Row]], arm: str) -> dict[int, Row]:
    """Of each seed: every metric of ``arm`` minus that of the baseline."""
    base = groups[BASELINE]
    return {seed: {m: row[m] - base[seed][m] for m in SHOWN} for seed, row in groups[arm].items()}
