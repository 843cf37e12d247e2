"""Table 1 of sample-specific debiasing, with rivals, oracles and controls, on the phantom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from medclip_debias.evaluation.catalogue import PAPER_BASE, PAPER_BEST, PAPER_TABLE_1
from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.experiment import Row, Table
from studies.phantom import (
    BASELINE,
    CHOOSING,
    CONTROLS,
    LANGUAGE_MODEL,
    TABLES,
    PhantomStudy,
    against_controls,
    best_candidate,
    compared,
    methods,
)
from studies.study import where

SELECTION_SEED = 1000
"""First seed of the phantoms on which settings are chosen; no reported cell has it."""
PAPER_ROWS = {
    "BioViL-style": "BioViL",
    BASELINE: PAPER_BASE,
    "remove by label": "remove by CheX5 labels",
    **{name: name for name in ("resample by text", "remove by text", "reweight by text")},
    "constant .05": "debiased, eta 0.05",
    "constant .1": "debiased, eta 0.1",
    LANGUAGE_MODEL: PAPER_BEST,
}
"""Which row of the paper's Table 1 a method is."""


class Table1(PhantomStudy):
    """Every method in both regimes; settings are chosen in the first, and kept in the others."""

    name: ClassVar[str] = "table1"

    def cells(self) -> list[dict[str, Any]]:
        """The candidates of every method that has several, on the phantoms for choosing."""
        first, s = self.settings.regimes[0], self.settings
        return [
            self._cell(method, candidate, SELECTION_SEED + number, first, "choose")
            for number in range(s.search_seeds)
            for method in s.methods
            if method not in CONTROLS and len(methods()[method]) > 1
            for candidate in methods()[method]
        ]

    def follow_up(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The chosen candidate of every method, on every seed; controls take their method's."""
        names = dict.fromkeys(row["method"] for row in rows)
        chosen = {name: best_candidate(where(rows, method=name)) for name in names}
        chosen |= {c: chosen[LANGUAGE_MODEL] for c in CONTROLS if LANGUAGE_MODEL in chosen}
        s = self.settings
        return [
            self._cell(
                method, chosen.get(method, next(iter(methods()[method]))), seed, regime, "report"
            )
            for regime in s.regimes
            for seed in s.seeds
            for method in s.methods
        ]

    def _cell(
        self, method: str, candidate: str, seed: int, regime: str, role: str
    ) -> dict[str, Any]:
        names: dict[str, Any] = {"role": role, "regime": regime, "method": method}
        names["candidate"] = candidate
        return self.cell(None, seed, data={"dials": {"regime": regime}}, **names)

    def groups(self, rows: Sequence[Row]) -> dict[str, dict[Any, dict[int, Row]]]:
        """The reported cells of each regime."""
        regimes = dict.fromkeys(row["regime"] for row in where(rows, role="report"))
        return {r: by_method(where(rows, role="report", regime=r)) for r in regimes}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Means and differences in each regime, what was chosen, and the paper's own figures."""
        found = []
        for regime, groups in self.groups(rows).items():
            found += compared(f"`{regime}`", groups, BASELINE)
            found += against_controls(f"`{regime}`", groups)
        reported = by_method(where(rows, role="report"))
        body = [
            [str(m), next(iter(own.values()))["candidate"], *_in_the_paper(str(m))]
            for m, own in reported.items()
        ]
        head = ["method", "chosen", *(f"paper's {TABLES.metric(m).title}" for m in CHOOSING)]
        return [*found, Table("Chosen settings; the paper on MIMIC-CXR, MS-CXR", head, body)]


def _in_the_paper(method: str) -> list[str]:
    """The paper's six values; empty for a method that it does not have."""
    if method not in PAPER_ROWS:
        return [""] * len(CHOOSING)
    *shares, rank = PAPER_TABLE_1[PAPER_ROWS[method]]
    return [*(f"{share:.2f}" for share in shares), f"{rank:.0f}"]
