"""Mismatched reports: which objective degrades least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.experiment import Row, Table
from studies.phantom import BASELINE, METRICS, TABLES, PhantomStudy
from studies.study import by_seed, gap, where

SHOWN = ("auc", "accuracy", "fine_auc", "cnr", "recall")


class Noise(PhantomStudy):
    """Every method at every share of mismatched reports."""

    name: ClassVar[str] = "noise"

    def cells(self) -> list[dict[str, Any]]:
        """Seeds, shares, methods; without noise the data are those of the other studies."""
        s = self.settings
        return [
            self.cell(
                None,
                seed,
                data={"dials": {"report_noise": noise}} if noise else None,
                method=method,
                candidate=candidate,
                noise=noise,
            )
            for seed in s.seeds
            for noise in s.noise
            for method, candidate in s.arms.items()
        ]

    def groups(self, rows: Sequence[Row]) -> dict[str, dict[Any, dict[int, Row]]]:
        """Rows of each share of mismatched reports."""
        levels = sorted({row["noise"] for row in rows})
        return {f"{n:.0%} mismatched": by_method(where(rows, noise=n)) for n in levels}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Tables at each share, and what noise takes of each method, also against InfoNCE."""
        parts = self.groups(rows)
        found = [TABLES.means(f"{title}: mean (sd)", own) for title, own in parts.items()]
        clean, *_, noisy = parts.values()
        worst = list(parts)[-1]
        taken = {
            name: {
                seed: {m: row[m] - clean[name][seed][m] for m in SHOWN} for seed, row in own.items()
            }
            for name, own in noisy.items()
        }
        body = []
        for name in noisy:
            own = [[*part[name].values()] for part in (noisy, clean)]
            gaps = [gap(by_seed(own[0], m), by_seed(own[1], m), METRICS[m].digits) for m in SHOWN]
            body.append([name, *gaps])
        head = ["", *(METRICS[m].title for m in SHOWN)]
        return [
            *found,
            Table(f"What {worst} change, with 95% intervals", head, body),
            TABLES.difference_table(f"What {worst} take", taken, BASELINE, SHOWN),
        ]
