"""Where a decision lies: at a sensitivity, a specificity, the best of both, or the best benefit."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rule = Literal["sensitivity", "specificity", "youden", "net_benefit"]
RULES: tuple[Rule, ...] = ("sensitivity", "specificity", "youden", "net_benefit")
CURVE: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
"""Threshold probabilities of a decision curve."""
_ROUNDING = 1e-9


def thresholds(
    positive: Floats,
    negative: Floats,
    *,
    sensitivity: float,
    specificity: float,
    threshold_probability: float,
    prevalence: float,
) -> dict[Rule, float]:
    """The score at or above which an image counts as positive, by each rule.

    ``sensitivity``: the highest with at least that share of positives. ``specificity``: the lowest
    with at least that share of negatives below. ``youden``: of largest sensitivity + specificity
    (Youden 1950). ``net_benefit``: of largest `net_benefit` at ``threshold_probability`` where
    ``prevalence`` are positive. Of several equally good ones the highest. Candidates are the scores
    themselves and the number above them all, at which nothing is positive.
    """
    scores = np.unique(np.concatenate([positive, negative]))
    scores = np.append(scores, np.nextafter(scores[-1], np.inf))
    found = 1 - np.searchsorted(np.sort(positive), scores, side="left") / len(positive)
    spared = np.searchsorted(np.sort(negative), scores, side="left") / len(negative)
    cost = threshold_probability / (1 - threshold_probability)
    benefit = prevalence * found - (1 - prevalence) * (1 - spared) * cost
    return {
        "sensitivity": float(scores[found >= sensitivity - _ROUNDING][-1]),
        "specificity": float(scores[spared >= specificity - _ROUNDING][0]),
        "youden": float(scores[_last_best(found + spared)]),
        "net_benefit": float(scores[_last_best(benefit)]),
    }


def _last_best(values: Floats) -> int:
    return int(np.flatnonzero(values >= values.max() - _ROUNDING)[-1])


def net_benefit(
    positive: Bools, flagged: Bools, weights: Floats, threshold_probability: float
) -> Floats:
    """Findings found less false alarms at their cost, per image, under each row of ``weights``.

    ``TP/n - FP/n * t/(1 - t)`` (Vickers & Elkin 2006): flagging nobody has 0.
    """
    cost = threshold_probability / (1 - threshold_probability)
    worth = flagged * np.where(positive, 1.0, -cost)
    with np.errstate(invalid="ignore"):
        return np.asarray(weights @ worth / weights.sum(axis=1))
