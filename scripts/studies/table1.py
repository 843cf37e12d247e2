"""Table 1 of sample-specific debiasing, with rivals, oracles and controls, on the phantom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from medclip_debias.config import Settings
from medclip_debias.errors import did_you_mean
from medclip_debias.evaluation.catalogue import PAPER_BASE, PAPER_BEST, PAPER_TABLE_1
from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.experiment import Row, Summary, Table
from medclip_debias.phantom.settings import REGIMES
from studies.false_negatives import CONTROLS, OLD_CONTROL
from studies.phantom_methods import BASELINE, LANGUAGE_MODEL, Candidate, Method, methods
from studies.phantom_run import METRICS
from studies.phantom_study import (
    FAMILY,
    LABELS,
    SELECTION_SEED,
    PhantomStudy,
    PhantomStudySettings,
    against_controls,
    best_candidate,
    difference_table,
    differences,
    figure_table,
    interval_table,
    quick_settings,
    seed_table,
    verdict,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAPER_METRICS = ("auc", "accuracy", "cnr", "miou", "recall", "median_rank")
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
JUDGED = ("auc", "accuracy", "fine_auc", "tail_auc", "cnr", "recall")
"""The metrics that sentences speak about: one for each task and the two ends of the classes."""


class Table1Settings(PhantomStudySettings):
    """Which regimes, which methods (all when empty), how many phantoms to choose settings on.

    Settings are chosen in the first regime and kept in the others.
    """

    search_seeds: int = Field(2, ge=1)
    regimes: tuple[str, ...] = ("hospital", "easy")
    methods: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _known(self) -> Table1Settings:
        for given, known in ((self.methods, [m.name for m in methods()]), (self.regimes, REGIMES)):
            for name in given:
                if name not in known:
                    raise ValueError(f"there is no '{name}'{did_you_mean(name, known)}")
        if self.methods and BASELINE not in self.methods:
            raise ValueError(f"methods must hold '{BASELINE}', which the others are compared with")
        return self


class Table1(PhantomStudy):
    """Every method in both regimes."""

    name: ClassVar[str] = "table1"
    title: ClassVar[str] = "Every correction for false negatives, in two regimes"
    source: ClassVar[str] = "Sample-specific debiasing (2023), Table 1"
    settings_class: ClassVar[type[Settings]] = Table1Settings
    about: ClassVar[str] = f"""
Every method trains the same encoders (a small residual network, a one-layer BERT that starts from
the masked language model of the reports) on the phantom, with the same batches, and is measured on
the phantom's test split: two-prompt classification of the five CheXpert classes (AUC, balanced
accuracy, calibration) and of the 28 true classes (fine AUC; tail: the nine rarest), grounding
(CNR, mIoU) and box retrieval (Recall, MedR).

In the `hospital` regime most reports deny the common findings and findings are faint; in the
`easy` one denials are few and findings plain. Each seed is a phantom, a language model and a
training of its own, so the intervals cover new data too. The learning rate is the same for all. A
method with a strength has three candidates for it; the one with the best mean rank over the
paper's six metrics on two hospital-like phantoms that no reported number uses is reported, in both
regimes (a strength that suits only the data it was chosen on is not worth much). Controls take the
language model's chosen setting: its mean eta for every sentence, and its values permuted over
the sentences of each batch. The three settings of the language model have a mean eta of .04 or
less, where the mean true probability in the hospital regime is .6: the grid does not reach larger
doses.

All methods but two are trained from sentences to images: BioViL-style and X-CLR are symmetric, so
what they differ by from InfoNCE is not the correction alone (`x-clr` has the symmetric baseline).
`true pairs removed` and `true probability` use what no archive knows: which image agrees with which
sentence, and each sentence's true probability. Neither bounds what a correction can gain: a false
negative may also be used as a positive.

Differences are paired over seeds, with 95% t intervals.
{FAMILY}
Each regime is a family.
"""
    outdated: ClassVar[str] = OLD_CONTROL

    @classmethod
    def quick(cls) -> Table1Settings:
        """Four methods, one regime, a few steps."""
        chosen = (BASELINE, LANGUAGE_MODEL, "true pairs removed", "constant = its mean")
        found: Table1Settings = quick_settings(
            Table1Settings, regimes=("hospital",), methods=chosen
        )
        return found

    def _methods(self) -> list[Method]:
        chosen = self.settings.methods
        return [m for m in methods() if not chosen or m.name in chosen]

    def cells(self) -> list[dict[str, Any]]:
        """The candidates of every method that has several, on the phantoms for choosing."""
        first = self.settings.regimes[0]
        return [
            self._cell(candidate, SELECTION_SEED + number, first, method, "choose")
            for number in range(self.settings.search_seeds)
            for method in self._methods()
            if method.group != "control" and len(method.candidates) > 1
            for candidate in method.candidates
        ]

    def follow_up(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """The chosen candidate of every method, on every seed."""
        chosen = {name: best_candidate(list(own)) for name, own in _by_name(rows).items()}
        return [
            cell
            for regime in self.settings.regimes
            for seed in self.settings.seeds
            for cell in self._reports(seed, regime, chosen)
        ]

    def _reports(self, seed: int, regime: str, chosen: Mapping[str, str]) -> list[dict[str, Any]]:
        """Every method's chosen candidate on one seed; the first where none was chosen."""
        cells = []
        for method in self._methods():
            label = chosen.get(method.name, chosen.get(LANGUAGE_MODEL))
            known = {candidate.label: candidate for candidate in method.candidates}
            candidate = known.get(str(label), method.candidates[0])
            cells.append(self._cell(candidate, seed, regime, method, "report"))
        return cells

    def follow_up_seconds(self) -> float:
        """One cell for each method, regime and seed."""
        count = len(self._methods()) * len(self.settings.seeds) * len(self.settings.regimes)
        one = self.settings.seconds_per_step * self.settings.train.steps + 6
        return float(count * one)

    def _cell(
        self, candidate: Candidate, seed: int, regime: str, method: Method, role: str
    ) -> dict[str, Any]:
        names: dict[str, Any] = {"role": role, "regime": regime}
        names |= {"method": method.name, "group": method.group}
        return self.cell(candidate, seed, data={"dials": {"regime": regime}}, **names)

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Tables of each regime, and what they say."""
        findings, tables, figures = [], [], {}
        for regime in self.settings.regimes:
            reported = [r for r in rows if (r["role"], r["regime"]) == ("report", regime)]
            groups = by_method(reported)
            findings += _findings(regime, groups)
            seeds = len(self.settings.seeds)
            tables += [
                figure_table(f"`{regime}`: mean (sd) over {seeds} seeds", groups),
                difference_table(f"`{regime}`: difference to {BASELINE}", groups, BASELINE),
                *seed_table(f"`{regime}`: where the variance over seeds comes from", reported),
                _chosen_table(regime, reported),
            ]
            figures[regime] = {
                str(name): {
                    metric: float(np.mean([r[metric] for r in own.values()])) for metric in METRICS
                }
                for name, own in groups.items()
            }
        overview = [_overview(regime, rows) for regime in self.settings.regimes]
        return Summary(findings, tables, figures, overview)

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Differences to the baseline with their intervals: a row of panels for each regime."""
        from studies.plots import intervals, panels

        shown = ("auc", "accuracy", "cnr", "recall")
        regimes = self.settings.regimes
        titles = [f"{regime}: {LABELS[m]}" for regime in regimes for m in shown]
        figure, axes = panels(len(titles), titles, rows=len(regimes))
        figure.set_size_inches(3.1 * len(shown), 4.6 * len(regimes))
        for place, one in enumerate(axes):
            regime, metric = regimes[place // len(shown)], shown[place % len(shown)]
            groups = by_method([r for r in rows if (r["role"], r["regime"]) == ("report", regime)])
            found = differences(groups, BASELINE, metric)
            compared = [name for name in groups if name != BASELINE]
            intervals(one, found, compared, names=place % len(shown) == 0)
            one.set_xlabel(f"minus {BASELINE}", fontsize=8)
        return figure


def _in_the_paper(method: str) -> str:
    """The paper's six values on MIMIC-CXR and MS-CXR, as ``.79 .65 1.40 .19 .29 115``; or none."""
    if method not in PAPER_ROWS:
        return ""
    *shares, rank = PAPER_TABLE_1[PAPER_ROWS[method]]
    return " ".join([*(f"{share:.2f}".removeprefix("0") for share in shares), f"{rank:.0f}"])


def _by_name(rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["method"], []).append(row)
    return found


def _findings(regime: str, groups: dict[Any, dict[int, Row]]) -> list[str]:
    found = []
    names = list(groups)
    oracle = "true pairs removed"
    everybody = [n for n in names if n != BASELINE]
    if {oracle, BASELINE} <= set(names):
        said = verdict(groups, oracle, BASELINE, JUDGED, everybody)
        found.append(f"`{regime}`, what removal can gain: {said}.")
    if {LANGUAGE_MODEL, BASELINE} <= set(names):
        said = verdict(groups, LANGUAGE_MODEL, BASELINE, JUDGED, everybody)
        found.append(f"`{regime}`, the paper's method: {said}.")
        controls = [name for name in CONTROLS if name in names]
        found += [
            f"`{regime}`, is it the sentence? {said}."
            for said in against_controls(groups, LANGUAGE_MODEL, controls)
        ]
    rest = [n for n in names if n not in (BASELINE, LANGUAGE_MODEL, oracle)]
    found += [f"`{regime}`: {verdict(groups, name, BASELINE, JUDGED, everybody)}." for name in rest]
    return found


def _overview(regime: str, rows: Sequence[Row]) -> Table:
    """Means with 95% intervals of the paper's six metrics, mean rank, and the paper's own."""
    groups = by_method([r for r in rows if (r["role"], r["regime"]) == ("report", regime)])
    title = f"Phantom, `{regime}`: mean and 95% interval over seeds"
    found = interval_table(title, groups, PAPER_METRICS)
    body = [[*row, _in_the_paper(row[0])] for row in found.rows]
    return Table(title, [*found.columns, "the paper's six"], body)


def _chosen_table(regime: str, reported: Sequence[Row]) -> Table:
    body = [
        [str(name), next(iter(own.values()))["candidate"]]
        for name, own in by_method(reported).items()
    ]
    return Table(f"`{regime}`: chosen settings", ["method", "setting"], body)
