"""Where decisions lie: thresholds of the score, and sets of answers that hold the truth.

A set of answers is present, absent, both (abstain) or none. Split conformal prediction: an answer
is in an image's set unless it fits worse than it fits the images, with that truth, on which the
calibration was made. Without assumptions on the model, as long as images with the finding look
alike in both places, and images without it do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Rule = Literal["sensitivity", "specificity", "youden", "net_benefit"]
CURVE: tuple[float, ...] = (0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
"""Threshold probabilities of a decision curve."""
ANSWERS = ("none", "absent", "present", "both")
"""What a set of answers may be; of ``both`` and ``none`` the model abstains."""
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


# ------------------------------------------------------------------------------ sets of answers


@dataclass(frozen=True)
class Sets:
    """Which values have which answers in their set.

    Attributes:
        present_from: "present" is in the set of values of at least this; may be -inf.
        absent_to: "absent" is in the set of values of at most this; may be inf.
    """

    present_from: float
    absent_to: float

    def of(self, values: Floats) -> tuple[Bools, Bools]:
        """Whether "present" and "absent" are in the set of each of ``values``."""
        return values >= self.present_from, values <= self.absent_to

    def words(self, values: Floats) -> NDArray[np.str_]:
        """One of `ANSWERS` for each of ``values``."""
        present, absent = self.of(values)
        return np.array(ANSWERS)[2 * present + 1 * absent]


def class_conditional(positive: Floats, negative: Floats, coverage: float) -> Sets:
    """Sets that hold the truth for ``coverage`` of either truth (Vovk 2012, label-conditional).

    Of n images with a truth, the ``ceil((n + 1) coverage)``-th from the side where it fits best
    sets the bound; with fewer than that the answer is in every set. As each truth has its own
    bound, the share of positives does not matter.

    Values are higher where the finding is likelier.
    """
    return Sets(-_bound(-positive, coverage), _bound(negative, coverage))


def _bound(misfit: Floats, coverage: float) -> float:
    rank = math.ceil((len(misfit) + 1) * coverage - _ROUNDING)
    return float(np.sort(misfit)[rank - 1]) if rank <= len(misfit) else math.inf


def marginal(positive: Floats, negative: Floats, coverage: float, target: float) -> Sets:
    """Sets that hold the truth for ``coverage`` of all images where ``target`` are positive.

    Weighted conformal prediction (Tibshirani et al. 2019, eq. 7) for label shift (Podkopaev &
    Ramdas 2021): a calibration image weighs the ratio of its truth's shares there and here, and so
    does the new image under each answer.

    Values are log-odds of calibration images.
    """
    count = len(positive) + len(negative)
    above = target / (len(positive) / count)
    below = (1 - target) / (len(negative) / count)
    misfit = np.concatenate([-positive, negative])
    weights = np.repeat([above, below], [len(positive), len(negative)])
    order = np.argsort(misfit, kind="stable")
    reached = np.cumsum(weights[order])

    def bound(own: float) -> float:
        needed = coverage * (reached[-1] + own)
        place = int(np.searchsorted(reached, needed * (1 - _ROUNDING)))
        return float(misfit[order[place]]) if place < count else math.inf

    return Sets(-bound(above), bound(below))
