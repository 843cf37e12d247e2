"""How far probabilities can be trusted, under any weights of the images."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from medclip_debias.evaluation.bootstrap import weighted_mean
from medclip_debias.evaluation.classification import CALIBRATION_BINS, sigmoid, weighted_ece
from medclip_debias.evaluation.decisions.probability import logistic

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
QUALITIES = ("ece", "ece_equal_mass", "brier", "intercept", "slope")


def qualities(positive: Bools, logits: Floats, weights: Floats) -> dict[str, Floats]:
    """Each of `QUALITIES` under each row of ``weights [b, n]``: ``[b]``; NaN where undefined.

    ``ece``: expected calibration error over 15 bins of equal width. ``ece_equal_mass``: the same
    over 15 bins of as many images each, as far as equal probabilities allow. ``brier``: mean of
    ``(p - y)^2``. ``intercept``: a of ``logit P(y) = a + logit p``, 0 where the mean is right,
    above 0 where the finding is commoner than said. ``slope``: b of ``logit P(y) = a + b logit p``,
    1 best, below 1 where probabilities are too extreme (Cox 1958; Van Calster et al. 2016).
    """
    p = sigmoid(logits)
    intercept, slope = recalibration(positive, logits, weights)
    return {
        "ece": weighted_ece(positive, p, weights),
        "ece_equal_mass": weighted_ece(positive, p, weights, equal_mass_bin(p)),
        "brier": weighted_mean((p - positive) ** 2, weights),
        "intercept": intercept,
        "slope": slope,
    }


def equal_mass_bin(probability: Floats, bins: int = CALIBRATION_BINS) -> NDArray[np.intp]:
    """Bin of each probability between quantiles; equal probabilities share one."""
    edges = np.quantile(probability, np.arange(1, bins) / bins)
    return np.searchsorted(edges, probability, side="right")


def recalibration(positive: Bools, logits: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Calibration intercept (slope fixed at 1) and slope; see `qualities`.

    NaN where all labels with a weight are equal, and for the slope where all log-odds are, or
    where they separate the labels, so that no finite slope is likeliest.
    """
    y = positive.astype(np.float64)
    ones = np.ones((1, y.size))
    start = logistic(ones.T, y, ones, logits)[0]
    intercept = logistic(ones.T, y, weights, logits, start)[:, 0]
    middle, spread = float(logits.mean()), float(logits.std())
    if spread <= 1e-12 * (1 + abs(middle)):
        slope = np.full(len(weights), np.nan)
    else:
        design = np.stack([(logits - middle) / spread, np.ones_like(y)], axis=1)
        mixed = ~_separated(positive, logits, weights)
        slope = np.full(len(weights), np.nan)
        if mixed.any():
            start = logistic(design, y, ones)[0]
            found = logistic(design, y, weights[mixed], 0.0, start)
            slope[mixed] = found[:, 0] / spread
    both = (weights @ y > 0) & (weights @ (1 - y) > 0)
    return np.where(both, intercept, np.nan), np.where(both, slope, np.nan)


def _separated(positive: Bools, logits: Floats, weights: Floats) -> Bools:
    """Rows in which no image without the finding lies above one with it, or the other way round."""
    there = weights > 0

    def ends(members: Bools) -> tuple[Floats, Floats]:
        inside = there & members
        low = np.where(inside, logits, np.inf).min(axis=1)
        return low, np.where(inside, logits, -np.inf).max(axis=1)

    (low_yes, high_yes), (low_no, high_no) = ends(positive), ends(~positive)
    return np.asarray((high_no <= low_yes) | (high_yes <= low_no))
