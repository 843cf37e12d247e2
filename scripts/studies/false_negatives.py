"""Do false negatives hurt InfoNCE, and is it the sentence that counts? Few arms, many seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from medclip_debias.config import Settings
from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.experiment import Cell, Row, Summary, Table
from studies.phantom_data import PhantomFolder
from studies.phantom_methods import BASELINE, LANGUAGE_MODEL, Candidate, methods
from studies.phantom_run import eta_true, training_counts
from studies.phantom_study import (
    LABELS,
    SHOWN,
    PhantomStudy,
    PhantomStudySettings,
    difference_table,
    differences,
    figure_table,
    quick_settings,
    verdict,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORACLE = "true pairs removed"
CONTROLS = ("constant = its mean", "its eta shuffled")
ARMS = (BASELINE, ORACLE, "remove by label", LANGUAGE_MODEL, *CONTROLS)
"""Each with the first of its candidates, which is the published setting: nothing is chosen."""
PLOTTED = ("auc", "accuracy", "cnr", "recall")


class FalseNegativesSettings(PhantomStudySettings):
    """Ten seeds, since CNR and Recall differ more from seed to seed than from method to method."""

    seeds: tuple[int, ...] = tuple(range(10))


class FalseNegatives(PhantomStudy):
    """The oracle, the paper's method and its controls against InfoNCE."""

    name: ClassVar[str] = "false-negatives"
    title: ClassVar[str] = "Do false negatives hurt, and is it the sentence that counts?"
    source: ClassVar[str] = "Sample-specific debiasing (2023), sections 1 and 4; this project"
    settings_class: ClassVar[type[Settings]] = FalseNegativesSettings
    about: ClassVar[str] = """
Two questions that come before any table of methods, on ten seeds of the hospital-like phantom,
each a phantom, a language model and a training of its own. First: what does InfoNCE lose by false
negatives at all? The oracle (`true pairs removed`) drops every pair that is known to be one. No
estimate of a probability can be expected to gain what the oracle does not. Second: does the
language model's eta act by what it says of each sentence? It is compared with its mean for every
sentence, and against its own values permuted over the sentences. All settings are the
published ones (a = .2, k = .35; removal where a CheXpert label is shared); nothing is chosen.

Differences are paired over seeds, with 95% t intervals; a star, and a filled dot in the plot,
marks p < .05 after Holm's correction over the methods.
"""

    @classmethod
    def quick(cls) -> FalseNegativesSettings:
        """Two seeds."""
        found: FalseNegativesSettings = quick_settings(FalseNegativesSettings)
        return found

    def cells(self) -> list[dict[str, Any]]:
        """How many negatives are false, and every arm, for each seed."""
        chosen = {method.name: method.candidates[0] for method in methods() if method.name in ARMS}
        found: list[dict[str, Any]] = []
        for seed in self.settings.seeds:
            rate = self.cell(Candidate("rate", {}), seed)
            found.append({"part": "rate", "seed": seed, "data": rate["data"]})
            found += [self.cell(chosen[arm], seed, part="train", method=arm) for arm in ARMS]
        return found

    def seconds(self, cell: Cell) -> float:
        """A training; the rate is read off."""
        return super().seconds(cell) if cell["part"] == "train" else 3.0

    def measure(self, cell: Cell) -> Row:
        """Train and measure, or count."""
        if cell["part"] == "train":
            return super().measure(cell)
        return false_rate(PhantomFolder(self.shared_folder(cell)))

    def summary(self, rows: Sequence[Row]) -> Summary:
        """How many are false, what the oracle gains, what the controls leave."""
        rates = [r for r in rows if r["part"] == "rate"]
        groups = by_method([r for r in rows if r["part"] == "train"])
        count = len(self.settings.seeds)
        others = [arm for arm in ARMS if arm != BASELINE]
        findings = [
            f"Of a sentence's negatives {np.mean([r['mean'] for r in rates]):.0%} are false on "
            "average (5th, 50th, 95th percentile over sentences: "
            + ", ".join(f"{np.mean([r[q] for r in rates]):.0%}" for q in ("q05", "q50", "q95"))
            + ").",
            f"Do false negatives hurt? {verdict(groups, ORACLE, BASELINE, SHOWN, others)}.",
            f"What a label knows: {verdict(groups, 'remove by label', BASELINE, SHOWN, others)}.",
            f"The paper's method: {verdict(groups, LANGUAGE_MODEL, BASELINE, SHOWN, others)}.",
            *(
                f"Is it the sentence? {verdict(groups, LANGUAGE_MODEL, control, SHOWN)}."
                for control in CONTROLS
            ),
        ]
        tables = [
            figure_table(f"Mean (sd) over {count} seeds", groups),
            difference_table(f"Difference to {BASELINE}", groups, BASELINE),
            _against_controls(groups),
        ]
        return Summary(findings, tables, {"rate": float(np.mean([r["mean"] for r in rates]))})

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Differences to InfoNCE with their intervals."""
        from medclip_debias.experiments.plots import intervals, panels

        groups = by_method([r for r in rows if r["part"] == "train"])
        figure, axes = panels(len(PLOTTED), [LABELS[metric] for metric in PLOTTED])
        figure.set_size_inches(3.4 * len(PLOTTED), 2.8)
        for place, (one, metric) in enumerate(zip(axes, PLOTTED, strict=True)):
            intervals(one, differences(groups, BASELINE, metric), names=place == 0)
            one.set_xlabel(f"minus {BASELINE}", fontsize=8)
        return figure


def false_rate(place: PhantomFolder) -> Row:
    """Share of a training sentence's negatives that agree with it.

    Returns:
        ``mean``, ``q05``, ``q50`` and ``q95`` of the true class probability over the sentences
        of the training studies, each occurrence counted.
    """
    counts = training_counts(place)
    values = np.repeat(list(eta_true(place).values()), list(counts.values()))
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95]).tolist()
    return {"mean": float(values.mean()), "q05": low, "q50": middle, "q95": high}


def _against_controls(groups: Mapping[Any, Mapping[int, Row]]) -> Table:
    """The language model minus each control: one table, two rows."""
    rows = []
    for control in CONTROLS:
        pair = {control: groups[control], LANGUAGE_MODEL: groups[LANGUAGE_MODEL]}
        table = difference_table("", pair, control)
        rows += [[f"minus {control}", *row[1:]] for row in table.rows]
    return Table(f"{LANGUAGE_MODEL}, against its controls", ["", *(LABELS[m] for m in SHOWN)], rows)
