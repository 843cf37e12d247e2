"""The zero-shot metrics of each class and over the classes, under any weights of the images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from medclip_debias.evaluation.bootstrap import weighted_auc, weighted_mean
from medclip_debias.evaluation.classification import (
    sigmoid,
    weighted_average_precision,
    weighted_ece,
    weighted_f1,
)
from medclip_debias.evaluation.prompt_scores import SideScores

Floats = NDArray[np.float64]
AUCS = {
    "auc": "mean_auc",
    "auc_positive": "mean_auc_positive",
    "auc_negative": "mean_auc_negative",
}
CONTRADICTION = "contradiction_rate"
AVERAGED = (*AUCS, "accuracy", "balanced_accuracy", "average_precision", "ece", "f1")
CLASS_METRICS = (*AVERAGED, CONTRADICTION)
"""Metrics of one class."""
MEANS = (*(AUCS.get(name, name) for name in AVERAGED), CONTRADICTION)
"""The same over the classes: means, and for contradictions the sum."""


def class_statistics(
    differences: Mapping[str, Floats],
    truth: Mapping[str, Floats],
    weights: Floats,
    scale: float | None,
    thresholds: Mapping[str, float],
    sides: SideScores | None = None,
) -> dict[str, Floats]:
    """Every metric under each row of ``weights [b, images]``: ``[b]`` by name.

    Args:
        differences: per class, positive minus negative score of each image.
        truth: per class, 1, 0 or NaN (left out) of each image; both values occur.
        weights: how often each image counts.
        scale: from difference to logit; None for no calibration error.
        thresholds: per class, where F1's decision lies; a class without one has no F1.
        sides: the scores behind the differences, also of classes without truth, whose prompts
            compete with the others'; None for none of what needs them.

    Returns:
        ``CLASS/METRIC`` for each of `CLASS_METRICS`, and `MEANS` over the classes.
    """
    result: dict[str, Floats] = {}
    for name, difference in differences.items():
        known = ~np.isnan(truth[name])
        positive, value, w = truth[name][known] == 1, difference[known], weights[:, known]
        right = (value > 0) == positive
        result[f"{name}/auc"] = weighted_auc(positive, value, w)
        if sides is not None:
            by_side = sides.positive[name][known], -sides.negative[name][known]
            result[f"{name}/auc_positive"] = weighted_auc(positive, by_side[0], w)
            result[f"{name}/auc_negative"] = weighted_auc(positive, by_side[1], w)
            if name in sides.contradictions:
                contradicted = sides.contradictions[name]
                result[f"{name}/{CONTRADICTION}"] = weighted_mean(contradicted, weights)
        result[f"{name}/accuracy"] = weighted_mean(right, w)
        halves = [weighted_mean(right[half], w[:, half]) for half in (positive, ~positive)]
        result[f"{name}/balanced_accuracy"] = (halves[0] + halves[1]) / 2
        result[f"{name}/average_precision"] = weighted_average_precision(positive, value, w)
        if scale is not None:
            result[f"{name}/ece"] = weighted_ece(positive, sigmoid(scale * value), w)
        if name in thresholds:
            result[f"{name}/f1"] = weighted_f1(positive, value >= thresholds[name], w)
    for metric in AVERAGED:
        found = [result[f"{n}/{metric}"] for n in differences if f"{n}/{metric}" in result]
        if found:
            result[AUCS.get(metric, metric)] = np.mean(found, axis=0)
    if sides is not None and sides.contradictions:
        every = np.any(list(sides.contradictions.values()), axis=0)
        result[CONTRADICTION] = weighted_mean(every, weights)
    return result
