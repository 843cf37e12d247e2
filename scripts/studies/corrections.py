"""What corrections are worth on the phantom: chosen, over training, over noise, over eta."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar

import numpy as np
from scipy.stats import spearmanr

from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.doses import training_counts
from medclip_debias.experiments.experiment import Cell, Row
from medclip_debias.reporting.tables import Table
from studies import phantom
from studies.phantom import (
    BASELINE,
    TABLES,
    Parts,
    Phantom,
    PhantomStudy,
    compared,
    minus,
    parts_of,
)
from studies.study import means, spread, where


class Table1(PhantomStudy):
    """Every method in both regimes, at the settings that were chosen on other phantoms."""

    name: ClassVar[str] = "table1"

    def axes(self) -> list[dict[str, Any]]:
        return [{"regime": r, "data": {"dials": {"regime": r}}} for r in self.settings.regimes]

    def groups(self, rows: Sequence[Row]) -> Parts:
        reported = [row for row in rows if row["seed"] in self.settings.seeds]
        regimes = dict.fromkeys(row["regime"] for row in reported)
        return {f"`{name}`": by_method(where(reported, regime=name)) for name in regimes}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """Means and differences in each regime, and what was chosen."""
        found = []
        for regime, groups in self.groups(rows).items():
            found += compared(regime, groups, BASELINE)
            found += phantom.against_controls(regime, groups)
        first = next(iter(self.groups(rows).values()))
        body = [[name, next(iter(own.values()))["candidate"]] for name, own in first.items()]
        return [*found, Table("Chosen settings", ["method", "chosen"], body)]


class FalseNegatives(PhantomStudy):
    """Removal by truth and by label, the paper's method and its controls against InfoNCE."""

    name: ClassVar[str] = "false-negatives"

    def cells(self) -> list[dict[str, Any]]:
        seeds = self.settings.seeds
        return super().cells() + [{"seed": seed, "data": self.data(seed, {})} for seed in seeds]

    def measure(self, cell: Cell) -> Row:
        return super().measure(cell) if "train" in cell else false_rate(self.place(cell))

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        groups = by_method([row for row in rows if "auc" in row])
        body = [[spread([row for row in rows if "auc" not in row], "mean", 2)]]
        return [
            Table("Share of a sentence's negatives that are false", ["mean"], body),
            *compared(f"{len(groups[BASELINE])} seeds", groups, BASELINE),
            *phantom.against_controls("Controls of equal dose", groups),
        ]


def false_rate(place: Phantom) -> Row:
    """Mean true class probability over the occurrences of sentences in the training studies."""
    counts = list(training_counts(place.data).values())
    return {"mean": float(np.average(list(place.eta_true().values()), weights=counts))}


class TrainingLength(PhantomStudy):
    """What removal by truth, by label and the paper's method gain with the length of training."""

    name: ClassVar[str] = "training-length"

    def axes(self) -> list[dict[str, Any]]:
        steps = self.settings.train["steps"]
        return [{"steps": round(length * steps)} for length in self.settings.lengths]

    def groups(self, rows: Sequence[Row]) -> Parts:
        return parts_of(rows, "steps", "{:,} steps")

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """What each arm gains at each length, and whether the longest training changes it."""
        parts, own = self.groups(rows), where(rows, method=BASELINE)
        chance = np.log(own[0]["train"]["batch_size"])
        loss = f"{BASELINE}'s loss at the end (chance: {chance:.3f})"
        (first, *_, last), arms = parts.values(), list(next(iter(parts.values())))[1:]
        pairs: Any = {
            a: tuple(minus(part[a], part[BASELINE], TABLES.shown) for part in (last, first))
            for a in arms
        }
        title = f"Difference to {BASELINE} in the longest training minus that in the shortest"
        return [
            *super().tables(rows),
            means(loss, own, {"steps": "steps"}, {"measured loss": "loss"}),
            TABLES.contrast_table(title, pairs),
        ]


class Noise(PhantomStudy):
    """Mismatched reports, every method at every share: which objective degrades least."""

    name: ClassVar[str] = "noise"
    judged: ClassVar[tuple[str, ...]] = ("auc", "accuracy", "fine_auc", "cnr", "recall")

    def axes(self) -> list[dict[str, Any]]:
        """Without noise the data are those of the other studies."""
        return [
            {"noise": share, "data": {"dials": {"report_noise": share}} if share else {}}
            for share in self.settings.noise
        ]

    def groups(self, rows: Sequence[Row]) -> Parts:
        return parts_of(rows, "noise", "{:.0%} mismatched")

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """What the largest share takes of each method, and of each more than of InfoNCE."""
        parts = self.groups(rows)
        clean, *_, noisy = parts.values()
        worst = list(parts)[-1]
        taken = {name: minus(own, clean[name], self.judged) for name, own in noisy.items()}
        pairs = {name: (own, clean[name]) for name, own in noisy.items()}
        return [
            TABLES.contrast_table(f"What {worst} change", pairs, self.judged),
            TABLES.difference_table(f"What {worst} take", taken, BASELINE, self.judged),
        ]


class XCLR(PhantomStudy):
    """X-CLR: sources of similarity, target temperatures, amounts of data; all arms symmetric."""

    name: ClassVar[str] = "x-clr"
    sources: ClassVar[tuple[str, ...]] = ("identity", "text encoder", "label graph")

    def cells(self) -> list[dict[str, Any]]:
        """All arms with all studies, the first two with a share of those for training, too."""
        s, tests = self.settings, self.settings.data["test_studies"]
        trained = s.data["studies"] - tests
        return [
            self.cell(
                seed,
                name,
                s.arms[name],
                data={"studies": int(tests + max(20, round(share * trained)))},
                share=share,
            )
            for seed, share in product(s.seeds, (1.0, *s.shares))
            for name in (s.arms if share == 1 else self.sources[:2])
        ]

    def groups(self, rows: Sequence[Row]) -> Parts:
        whole = by_method(where(rows, share=1.0))
        taus = {"tau_s 0.1": whole["text encoder"]}
        taus |= {name: own for name, own in whole.items() if name.startswith("tau_s")}
        ordered = dict(sorted(taus.items(), key=lambda each: float(each[0].split()[-1])))
        few = [row for row in rows if row["share"] < 1]
        return {
            "Source": {name: whole[name] for name in self.sources},
            "Temperature": {"identity": whole["identity"]} | ordered,
            **parts_of(few, "share", "{:.0%} of the training studies"),
        }


class Estimator(PhantomStudy):
    """Why the true probability collapses with one positive, and less of it does not."""

    name: ClassVar[str] = "estimator"

    def groups(self, rows: Sequence[Row]) -> Parts:
        return {"Fresh seeds": by_method([r for r in rows if r["seed"] in self.settings.seeds])}

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """The usual ones, and how many anchors end on the floor."""
        values = {"clamped": "on the floor", "mean_eta": "mean eta"}
        own = [row for row in rows if row["seed"] in self.settings.seeds]
        floor = means("At the end of training", own, {"method": ""}, values)
        return [floor, *super().tables(rows)]


class EtaTradeoff(PhantomStudy):
    """Metrics over a constant eta, with the language model's beside it; then the estimates."""

    name: ClassVar[str] = "eta-tradeoff"

    def cells(self) -> list[dict[str, Any]]:
        s = self.settings
        return super().cells() + [
            {"estimate": estimate, "share": 1.0, "seed": seed, "data": self.data(seed, {})}
            for seed, estimate in product(s.seeds, s.estimates)
        ]

    def measure(self, cell: Cell) -> Row:
        if "train" in cell:
            return super().measure(cell)
        return tracking(self.place(cell), cell["estimate"])

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """As usual; and of each estimate rho with the truth, and the slope of the truth on it."""
        whole, title = where(rows, share=1.0), "The true log probability, mean (sd)"
        values = {"spearman": "Spearman's rho with it", "slope": "slope of it"}
        return [*super().tables(rows), means(title, whole, {"estimate": "estimate"}, values)]

    def groups(self, rows: Sequence[Row]) -> Parts:
        (groups,) = super().groups(rows).values()
        return {f"{len(groups['eta 0'])} seeds": groups}


def tracking(place: Phantom, estimate: str) -> Row:
    """How an estimate of the log probability goes with the truth, over sentences by occurrence.

    ``slope`` is that of the least-squares line of true on estimated. What is true of all images,
    or of none, is left out.
    """
    counts, scores = training_counts(place.data), place.data.scores(None)
    truth = {text: value for text, value in place.eta_true().items() if 0 < value < 1}
    times = [counts[text] for text in truth]
    total = sum(counts.values())
    estimated = [
        math.log((counts[text] + 0.5) / total) if estimate == "counts" else scores[text]
        for text in truth
    ]
    x, y = np.repeat(estimated, times), np.repeat(np.log(list(truth.values())), times)
    slope, rho = np.polyfit(x, y, 1)[0], spearmanr(x, y).statistic
    return {"spearman": float(rho), "slope": float(slope), "sentences": len(truth)}
