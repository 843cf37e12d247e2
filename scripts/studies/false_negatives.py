"""What does removal gain InfoNCE, and is it the sentence that counts? Few arms, many seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field

from medclip_debias.config import Settings
from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.experiment import Cell, Row, Summary, Table
from studies.phantom_data import PhantomFolder
from studies.phantom_methods import BASELINE, LANGUAGE_MODEL, Candidate, methods
from studies.phantom_run import eta_true, training_counts
from studies.phantom_study import (
    FAMILY,
    LABELS,
    SHOWN,
    PhantomStudy,
    PhantomStudySettings,
    against_controls,
    contrast_table,
    difference_table,
    differences,
    figure_table,
    of_equal_dose,
    quick_settings,
    seed_table,
    verdict,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ORACLE = "true pairs removed"
CONTROLS = ("constant = its mean", "its eta shuffled")
ARMS = (BASELINE, ORACLE, "remove by label", LANGUAGE_MODEL, *CONTROLS)
"""Each with the first of its candidates, which is the published setting: nothing is chosen."""
PLOTTED = ("auc", "accuracy", "cnr", "recall")


OLD_CONTROL = """The control `its eta shuffled` was permuted over the distinct sentences then, which
changes the mean over their occurrences: its dose is a fraction of the method's. What was concluded
from the two is withdrawn; today's control is permuted over the sentences of each batch. The cells
hold no AUC of single classes, and no training was replicated."""
"""What to know of cells of version 1."""


class FalseNegativesSettings(PhantomStudySettings):
    """Settings of the study.

    Attributes:
        seeds: ten, since CNR and Recall differ more from seed to seed than from method to method.
        replicates: trainings of each arm on each seed's phantom; two or more separate the noise of
            training from what a phantom does to an arm.
    """

    seeds: tuple[int, ...] = tuple(range(10))
    replicates: int = Field(1, ge=1)


class FalseNegatives(PhantomStudy):
    """Removal by truth, the paper's method and its controls against InfoNCE."""

    name: ClassVar[str] = "false-negatives"
    title: ClassVar[str] = "Do false negatives hurt, and is it the sentence that counts?"
    source: ClassVar[str] = "Sample-specific debiasing (2023), sections 1 and 4; this project"
    settings_class: ClassVar[type[Settings]] = FalseNegativesSettings
    about: ClassVar[str] = f"""
Two questions that come before any table of methods, on ten seeds of the hospital-like phantom,
each a phantom, a language model and a training of its own. First: what does InfoNCE gain when every
pair that is known to be a false negative is removed (`true pairs removed`)? That is what perfect
knowledge is worth to a method that only removes. It bounds no other correction: a false negative
may also be used as a positive, and removal by label, which takes other pairs away as well, may gain
more in what the labels name. It leaves an anchor fewer negatives, too, and no arm here removes as
many at random. Second: does the language model's eta act by what it says of each sentence? It is
compared with its mean for every sentence, and with its own values permuted over the sentences of
each batch. All settings are the published ones (a = .2, k = .35;
removal where a CheXpert label is shared); nothing is chosen. The mean eta is about .04, where the
mean true probability is about .6.

Differences are paired over seeds, with 95% t intervals.
{FAMILY}
With one training for each arm and seed, training noise and what a phantom does to one arm are one
number, the rest; `replicates=2` tells them apart.
"""
    outdated: ClassVar[str] = OLD_CONTROL

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
            found += [
                self.cell(chosen[arm], seed, replicate=replicate, part="train", method=arm)
                for replicate in range(self.settings.replicates)
                for arm in ARMS
            ]
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
        """How many are false, what removing them gains, what the controls leave."""
        rates = [r for r in rows if r["part"] == "rate"]
        trained = [r for r in rows if r["part"] == "train"]
        groups = by_method(trained)
        count = len(self.settings.seeds)
        others = [arm for arm in ARMS if arm != BASELINE]
        findings = [
            f"Of a sentence's negatives {np.mean([r['mean'] for r in rates]):.0%} are false on "
            "average (5th, 50th, 95th percentile over sentences: "
            + ", ".join(f"{np.mean([r[q] for r in rates]):.0%}" for q in ("q05", "q50", "q95"))
            + ").",
            f"What removal can gain: {verdict(groups, ORACLE, BASELINE, SHOWN, others)}.",
            f"What a label knows: {verdict(groups, 'remove by label', BASELINE, SHOWN, others)}.",
            f"The paper's method: {verdict(groups, LANGUAGE_MODEL, BASELINE, SHOWN, others)}.",
            *(
                f"Is it the sentence? {said}."
                for said in against_controls(groups, LANGUAGE_MODEL, CONTROLS)
            ),
        ]
        tables = [
            figure_table(f"Mean (sd) over {count} seeds", groups),
            difference_table(f"Difference to {BASELINE}", groups, BASELINE),
            *_against_controls(groups),
            *seed_table("Where the variance over seeds comes from", trained),
        ]
        return Summary(findings, tables, {"rate": float(np.mean([r["mean"] for r in rates]))})

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Differences to InfoNCE with their intervals."""
        from studies.plots import intervals, panels

        groups = by_method([r for r in rows if r["part"] == "train"])
        compared = [name for name in groups if name != BASELINE]
        figure, axes = panels(len(PLOTTED), [LABELS[metric] for metric in PLOTTED])
        figure.set_size_inches(3.4 * len(PLOTTED), 2.8)
        for place, (one, metric) in enumerate(zip(axes, PLOTTED, strict=True)):
            found = differences(groups, BASELINE, metric)
            intervals(one, found, compared, names=place == 0)
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


def _against_controls(groups: Mapping[Any, Mapping[int, Row]]) -> list[Table]:
    """The language model minus each control of its dose: one table."""
    own = groups[LANGUAGE_MODEL]
    pairs = {
        f"minus {control}": (own, groups[control])
        for control in CONTROLS
        if of_equal_dose(own, groups[control])
    }
    title = f"{LANGUAGE_MODEL}, against its controls of equal dose"
    return [contrast_table(title, pairs)] if pairs else []
