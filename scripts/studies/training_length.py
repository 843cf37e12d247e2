"""Do the answers change with more training? The arms of `false_negatives`, trained for longer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field, model_validator

from medclip_debias.config import Settings
from medclip_debias.experiments.differences import by_method, with_interval
from medclip_debias.experiments.experiment import Row, Summary
from studies.false_negatives import ARMS, OLD_CONTROL, ORACLE
from studies.phantom_methods import BASELINE, LANGUAGE_MODEL, methods
from studies.phantom_study import (
    FAMILY,
    LABELS,
    SHOWN,
    PhantomStudy,
    PhantomStudySettings,
    contrasts,
    difference_table,
    digits_of,
    figure_table,
    quick_settings,
    seed_table,
    verdict,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAID = (ORACLE, "remove by label", LANGUAGE_MODEL)
"""The arms of which there are sentences; the controls have their rows."""
PLOTTED = ("auc", "accuracy", "fine_auc", "tail_auc", "miou", "recall")


class TrainingLengthSettings(PhantomStudySettings):
    """Settings of the study.

    Attributes:
        lengths: of training, as multiples of ``train.steps``, ascending; each is a training of
            its own, with the learning rate falling to zero at its end.
    """

    lengths: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(
        (0.3, 1, 3), min_length=2
    )

    @model_validator(mode="after")
    def _ascending(self) -> TrainingLengthSettings:
        steps = self.steps()
        if list(steps) != sorted(set(steps)) or steps[0] < 1:
            raise ValueError("'lengths' must give one step or more, each more than the last")
        return self

    def steps(self) -> tuple[int, ...]:
        """The lengths in steps."""
        return tuple(round(length * self.train.steps) for length in self.lengths)


class TrainingLength(PhantomStudy):
    """What removal by truth, by label and the paper's method gain with the length of training."""

    name: ClassVar[str] = "training-length"
    title: ClassVar[str] = "Do the answers change with more training?"
    source: ClassVar[str] = "this project"
    settings_class: ClassVar[type[Settings]] = TrainingLengthSettings
    about: ClassVar[str] = f"""
The other studies train for 1,000 steps, far from the end of learning. Here the arms of
`false-negatives` (true pairs removed, removal by label, the language model's eta and its two
controls) are trained for other lengths too, on the same phantoms of the hospital-like regime. If a
correction needs a network that has learned, the longest training is where it shows. No phantom here
was trained until its metrics stopped rising, so nothing is said of the end of learning.

The findings give InfoNCE's loss beside that of chance. Where it has hardly left it, differences are
in how soon a network escapes from that plateau, which a pretrained start may not have.

Differences are paired over seeds, with 95% t intervals.
{FAMILY}
Each length is a family;
the changes from the shortest to the longest training are another.
"""
    outdated: ClassVar[str] = OLD_CONTROL

    @classmethod
    def quick(cls) -> TrainingLengthSettings:
        """Two lengths of a few steps."""
        found: TrainingLengthSettings = quick_settings(TrainingLengthSettings, lengths=(0.5, 1))
        return found

    def cells(self) -> list[dict[str, Any]]:
        """Seeds, lengths, arms; what the other studies measure as well comes with the rest."""
        chosen = {method.name: method.candidates[0] for method in methods() if method.name in ARMS}
        found: list[dict[str, Any]] = []
        for seed in self.settings.seeds:
            for steps in self.settings.steps():
                for arm in ARMS:
                    cell = self.cell(chosen[arm], seed, method=arm, steps=steps)
                    cell["train"] |= {"steps": steps}
                    found.append(cell)
        return found

    def summary(self, rows: Sequence[Row]) -> Summary:
        """What each arm gains at each length, and whether the longest training changes it."""
        lengths = self.settings.steps()
        others = [arm for arm in ARMS if arm != BASELINE]
        findings, tables = [], []
        for steps in lengths:
            own = [r for r in rows if r["steps"] == steps]
            groups = by_method(own)
            findings.append(_at_chance(groups[BASELINE], steps, self.settings.train.batch_size))
            findings += [
                f"{steps:,} steps: {verdict(groups, arm, BASELINE, SHOWN, others)}." for arm in SAID
            ]
            count = len(self.settings.seeds)
            tables += [
                figure_table(f"{steps:,} steps: mean (sd) over {count} seeds", groups),
                difference_table(f"{steps:,} steps: difference to {BASELINE}", groups, BASELINE),
                *seed_table(f"{steps:,} steps: where the variance over seeds comes from", own),
            ]
        findings += _changes(rows, lengths[0], lengths[-1])
        return Summary(findings, tables)

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Every arm's metrics over the steps; bars are sd over seeds."""
        from studies.plots import labels, means_with_bars, panels

        figure, axes = panels(len(PLOTTED), [LABELS[metric] for metric in PLOTTED], rows=2)
        lengths = self.settings.steps()
        for place, (one, metric) in enumerate(zip(axes, PLOTTED, strict=True)):
            one.set_xscale("log")
            for style, arm in enumerate(ARMS):
                each = [
                    [r[metric] for r in rows if (r["method"], r["steps"]) == (arm, steps)]
                    for steps in lengths
                ]
                means_with_bars(one, lengths, each, style, arm, 0.015 * (style - 2.5))
            one.set_xticks(lengths, [f"{steps:,}" for steps in lengths])
            one.minorticks_off()
            labels(one, "steps", "", legend=place == 0)
        return figure


def gains(rows: Sequence[Row], arm: str) -> dict[int, dict[int, Row]]:
    """Of each length and seed: every metric of ``arm`` minus that of the baseline."""
    found: dict[int, dict[int, Row]] = {}
    for steps, own in by_method(rows, "steps").items():
        groups = by_method([r for r in rows if r["steps"] == steps])
        found[steps] = {
            seed: {m: groups[arm][seed][m] - groups[BASELINE][seed][m] for m in SHOWN}
            for seed in own
        }
    return found


def _at_chance(own: Mapping[int, Row], steps: int, batch: int) -> str:
    """One sentence: the loss that InfoNCE has left at the end, beside that of chance."""
    left = np.mean([row.get("measured loss", row.get("loss")) for row in own.values()])
    return f"{steps:,} steps: {BASELINE}'s loss is {left:.3f}; chance is {np.log(batch):.3f}."


def _changes(rows: Sequence[Row], first: int, last: int) -> list[str]:
    """A sentence for each arm: where what it gains is not the same after longer training."""
    each = {arm: gains(rows, arm) for arm in SAID}
    columns = contrasts({arm: (own[last], own[first]) for arm, own in each.items()}, SHOWN)
    found = []
    for arm in SAID:
        if any(arm not in columns[metric] for metric in SHOWN):
            found.append(f"{arm}: too few seeds to say what longer training changes.")
            continue
        said = []
        for metric in SHOWN:
            value, interval, p = columns[metric][arm]
            if p < 0.05 and value != 0:
                said.append(f"{LABELS[metric]} {with_interval(value, interval, digits_of(metric))}")
        found.append(
            f"{arm}: its difference to {BASELINE} after {last:,} steps minus that after {first:,}: "
            + ("; ".join(said) or "no statistically significant change")
            + "."
        )
    return found
