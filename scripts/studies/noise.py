"""Mismatched reports: which objective degrades least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from medclip_debias.config import Settings
from medclip_debias.experiments.differences import by_method, with_interval
from medclip_debias.experiments.experiment import Row, Summary, Table
from studies.phantom_methods import BASELINE, LANGUAGE_MODEL, methods
from studies.phantom_study import (
    LABELS,
    SEEDS_NEEDED,
    PhantomStudy,
    PhantomStudySettings,
    differences,
    digits_of,
    figure_table,
    quick_settings,
    verdict,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = {
    BASELINE: "as it is",
    "remove by label": "match shared, keep_mass False",
    "constant .05": "as it is",
    LANGUAGE_MODEL: "a 0.2, k 0.35",
    "FNC": "alpha 0.05",
    "X-CLR": "tau_s 0.1",
}
"""The methods compared, each with its published or first setting: nothing is chosen here."""
SHOWN = ("auc", "accuracy", "fine_auc", "cnr", "recall")


class NoiseSettings(PhantomStudySettings):
    """Share of the training studies whose report is another patient's."""

    noise: tuple[float, ...] = (0.0, 0.1, 0.3)


class Noise(PhantomStudy):
    """Every method at every share of mismatched reports."""

    name: ClassVar[str] = "noise"
    title: ClassVar[str] = "Mismatched reports"
    source: ClassVar[str] = "this project, after GloFND and X-CLR on noisy captions"
    settings_class: ClassVar[type[Settings]] = NoiseSettings
    about: ClassVar[str] = """
A share of the training studies carries a report that was written for other findings; test studies
are clean. Hospital-like phantom, the same training for all methods, each with its published or
first setting. Each seed is a phantom of its own; at one seed all shares have the same images.
What noise takes is each method's metric with noise minus its own without, paired over seeds; that
of each method is then compared with that of InfoNCE, with Holm's correction over methods and
metrics; what is left, likewise. A method that is near chance has little left to lose, so what is
lost is shown beside what is left. Where a sentence names the methods that lose least and most, it
says whether their intervals overlap; it is no test of the two.
The settings are: removal where a CheXpert label is shared, a constant eta of .05, a language
model's with a = .2 and k = .35, FNC with alpha .05 from 40% of the steps, X-CLR with tau_s .1.
They are not those that `table1` chose: it took k = .7 for the language model, FNC with alpha .02
and X-CLR with tau_s .05, and passed over alpha .05 and tau_s .1, which are weaker without noise
already. X-CLR is symmetric besides, the others are trained from sentences to images. So what these
three do here says little of what they would do at their chosen strength.
"""

    @classmethod
    def quick(cls) -> NoiseSettings:
        """Clean and very noisy."""
        found: NoiseSettings = quick_settings(NoiseSettings, noise=(0.0, 0.3))
        return found

    def cells(self) -> list[dict[str, Any]]:
        """Seeds, shares, methods."""
        chosen = [
            (method.name, candidate)
            for method in methods()
            for candidate in method.candidates
            if METHODS.get(method.name) == candidate.label
        ]
        return [
            self.cell(
                candidate,
                seed,
                # Without noise the data are those of the other studies.
                data={"dials": {"report_noise": noise}} if noise else None,
                method=name,
                noise=noise,
            )
            for seed in self.settings.seeds
            for noise in self.settings.noise
            for name, candidate in chosen
        ]

    def summary(self, rows: Sequence[Row]) -> Summary:
        """Tables at each share, and what noise costs each method."""
        levels = list(self.settings.noise)
        tables = [
            figure_table(
                f"{noise:.0%} mismatched: mean (sd)",
                by_method([r for r in rows if r["noise"] == noise]),
            )
            for noise in levels
        ]
        worst, findings = levels[-1], []
        losses = {name: _loss(rows, name, levels[0], worst) for name in METHODS}
        for metric in SHOWN:
            if len(self.settings.seeds) < SEEDS_NEEDED.get(metric, 0):
                continue
            found = {name: own[metric] for name, own in losses.items() if metric in own}
            if not found:
                findings.append("Too few seeds to say what noise costs.")
                break
            least = max(found, key=lambda name: found[name][0])
            most = min(found, key=lambda name: found[name][0])
            d = digits_of(metric)
            findings.append(
                f"{LABELS[metric]} at {worst:.0%} mismatched against none: least lost by {least} "
                f"({with_interval(*found[least][:2], d)}, "
                f"{_from_to(rows, least, metric, levels)}), most by {most} "
                f"({with_interval(*found[most][:2], d)}, {_from_to(rows, most, metric, levels)})"
                + ("; their intervals overlap." if _overlap(found[least], found[most]) else ".")
            )
        tables.append(_loss_table(losses, worst))
        lost = _lost(rows, levels[0], worst)
        others = [name for name in lost if name != BASELINE]
        findings += [
            f"What noise takes, {verdict(lost, name, BASELINE, SHOWN, others)}." for name in others
        ]
        left = by_method([r for r in rows if r["noise"] == worst])
        findings += [
            f"At {worst:.0%} mismatched, {verdict(left, name, BASELINE, SHOWN, others)}."
            for name in others
        ]
        return Summary(findings, tables)

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Each metric over the share of mismatched reports; bars are sd over seeds."""
        from studies.plots import labels, means_with_bars, panels

        figure, axes = panels(len(SHOWN), [LABELS[m] for m in SHOWN], rows=2)
        levels = list(self.settings.noise)
        for place, (one, metric) in enumerate(zip(axes, SHOWN, strict=True)):
            for style, name in enumerate(METHODS):
                each = [
                    [r[metric] for r in rows if (r["method"], r["noise"]) == (name, level)]
                    for level in levels
                ]
                means_with_bars(one, levels, each, style, name, 0.012 * (style - 2.5))
            labels(one, "share of mismatched reports", LABELS[metric], legend=place == 0)
        return figure


Loss = tuple[float, tuple[float, float], float]


def _loss(rows: Sequence[Row], name: str, clean: float, noisy: float) -> dict[str, Loss]:
    """Metric at ``noisy`` minus that at ``clean``, for each metric."""
    own = [r for r in rows if r["method"] == name and r["noise"] in (clean, noisy)]
    groups = by_method(own, "noise")
    found = {metric: differences(groups, clean, metric).get(noisy) for metric in SHOWN}
    return {metric: value for metric, value in found.items() if value is not None}


def _lost(rows: Sequence[Row], clean: float, noisy: float) -> dict[str, dict[int, Row]]:
    """Of each method and seed: every metric at ``noisy`` minus that at ``clean``."""
    levels = [by_method([r for r in rows if r["noise"] == level]) for level in (clean, noisy)]
    return {
        name: {
            seed: {metric: row[metric] - levels[0][name][seed][metric] for metric in SHOWN}
            for seed, row in own.items()
        }
        for name, own in levels[1].items()
    }


def _from_to(rows: Sequence[Row], name: str, metric: str, levels: Sequence[float]) -> str:
    """The means at the first and the last share."""
    first, last = (
        np.mean([r[metric] for r in rows if (r["method"], r["noise"]) == (name, level)])
        for level in (levels[0], levels[-1])
    )
    d = digits_of(metric)
    return f"from {first:.{d}f} to {last:.{d}f}"


def _overlap(one: Loss, other: Loss) -> bool:
    return one[1][0] <= other[1][1] and other[1][0] <= one[1][1]


def _loss_table(losses: dict[str, dict[str, Loss]], worst: float) -> Table:
    body = [
        [name, *(with_interval(*own[m][:2], digits_of(m)) if m in own else "" for m in SHOWN)]
        for name, own in losses.items()
    ]
    return Table(
        f"What {worst:.0%} of mismatched reports change, with 95% intervals",
        ["", *(LABELS[m] for m in SHOWN)],
        body,
    )
