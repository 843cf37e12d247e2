"""Why the true class probability collapses with one positive, and whether it can be mended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.experiment import Row, Table
from studies.debiased_pooled import PooledDebiased
from studies.phantom import (
    BASELINE,
    LANGUAGE_MODEL,
    TABLES,
    PhantomStudy,
    best_candidate,
    compared,
    methods,
)
from studies.study import where

COLLAPSED = "true eta, pair"
JUDGED = ("auc", "accuracy", "cnr", "recall")


class Estimator(PhantomStudy):
    """Variants of the same-class mean, shrinkage and floor; the best judged on fresh seeds."""

    name: ClassVar[str] = "estimator"

    def _arms(self) -> dict[str, dict[str, Any]]:
        """References, then the variants."""
        known = methods()
        etas = {
            "true eta": known["true probability"]["as it is"]["eta"],
            LANGUAGE_MODEL: known[LANGUAGE_MODEL]["a 0.2, k 0.35"]["eta"],
        }
        arms = {name: next(iter(known[name].values())) for name in (BASELINE, LANGUAGE_MODEL)}
        for name, how in self.settings.variants.items():
            eta = etas[next(start for start in etas if name.startswith(start))]
            arms[name] = {"kind": PooledDebiased.kind, "eta": eta, **how}
        return arms

    def cells(self) -> list[dict[str, Any]]:
        """All variants and references on the search seeds."""
        return [
            self.cell(loss, seed, role="search", method=name, candidate=name)
            for seed in self.settings.search_seeds
            for name, loss in self._arms().items()
        ]

    def follow_up(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The best variant, the collapsed one and the references on fresh seeds."""
        best = best_candidate([r for r in rows if r["method"] in self.settings.variants])
        arms = self._arms()
        return [
            self.cell(arms[name], seed, role="judge", method=name, candidate=name)
            for seed in self.settings.seeds
            for name in dict.fromkeys((BASELINE, LANGUAGE_MODEL, COLLAPSED, best))
        ]

    def groups(self, rows: Sequence[Row]) -> dict[str, dict[Any, dict[int, Row]]]:
        """What was judged on fresh seeds."""
        return {"Fresh seeds:": by_method(where(rows, role="judge"))}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Search, then judgement."""
        metrics = ("clamped", "mean_eta", *JUDGED)
        search = by_method(where(rows, role="search"))
        body = [
            [
                name,
                *(
                    f"{np.mean([row.get(metric, 0.0) for row in own.values()]):.3f}"
                    for metric in metrics
                ),
            ]
            for name, own in search.items()
        ]
        heads = ["on the floor", "mean eta", *(TABLES.metric(m).title for m in JUDGED)]
        title = "Search seeds: mean at the end of training"
        judge = by_method(where(rows, role="judge"))
        return [
            Table(title, ["variant", *heads], body),
            *compared("Fresh seeds", judge, BASELINE),
        ]
