"""Zero-shot classification: does an image score higher with "X" or with "no X"?

Per class, a positive and a negative score: the mean over that side's prompts of the trained
image-sentence similarity. The decision is the larger one (a tie counts as negative); AUC is on
the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.labels import LabelPolicy
from medclip_debias.data.prompts import PromptSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.bootstrap import (
    bootstrap_intervals,
    weighted_auc,
    weighted_mean,
)
from medclip_debias.evaluation.metrics import auc

Floats = NDArray[np.float64]
METRICS = ("auc", "accuracy", "balanced_accuracy")


def prompt_differences(scores: Floats, prompts: PromptSet) -> dict[str, Floats]:
    """Positive minus negative score of each class: ``[images]``.

    Args:
        scores: ``[images, texts]`` in the order of ``prompts.texts``.
        prompts: the prompt set.
    """
    column = {text: number for number, text in enumerate(prompts.texts)}
    return {
        name: scores[:, [column[t] for t in sides.positive]].mean(axis=1)
        - scores[:, [column[t] for t in sides.negative]].mean(axis=1)
        for name, sides in prompts.classes.items()
    }


def zero_shot(
    differences: Mapping[str, Floats],
    labels: Mapping[str, Floats],
    patients: Sequence[str],
    *,
    policy: LabelPolicy | None = None,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Metrics per class and their means over the classes, with intervals.

    Args:
        differences: per class, positive minus negative score of each image.
        labels: per class, label value of each image (1, 0, -1, NaN); a class may be absent.
        patients: patient of each image.
        policy: what -1 and blank stand for; left out by default.
        resamples: bootstrap resamples of the patients.
        seed: of the bootstrap.

    Returns:
        ``mean_auc``, ``accuracy``, ``balanced_accuracy`` (means over the usable classes),
        ``interval`` (of each), ``classes`` (the same and counts, per class), ``refused``
        (classes with one label value only, with their counts).

    Raises:
        UserError: no class has both label values.
    """
    policy = policy or LabelPolicy()
    truth: dict[str, Floats] = {}
    counts: dict[str, dict[str, int]] = {}
    refused: dict[str, dict[str, Any]] = {}
    for name, difference in differences.items():
        values = np.asarray(labels.get(name, np.full(len(difference), np.nan)), dtype=np.float64)
        judged = policy.apply(values)
        counts[name] = {
            "images": len(judged),
            "positive": int((judged == 1).sum()),
            "negative": int((judged == 0).sum()),
            "uncertain": int((values == -1).sum()),
            "blank": int(np.isnan(values).sum()),
            "left_out": int(np.isnan(judged).sum()),
        }
        if counts[name]["positive"] and counts[name]["negative"]:
            truth[name] = judged
        else:
            reason = "no such label column" if name not in labels else "one label value only"
            refused[name] = {"reason": reason, **counts[name]}
    if not truth:
        found = "; ".join(
            f"{name} {c['positive']} present, {c['negative']} absent" for name, c in counts.items()
        )
        raise UserError(
            f"Zero-shot classification needs images with both labels of a class, and none has "
            f"them ({found}); evaluate a split with labels, or another label policy."
        )
    chosen = {name: np.asarray(differences[name], dtype=np.float64) for name in truth}
    point = _statistics(chosen, truth, np.ones((1, len(patients))))
    intervals = bootstrap_intervals(
        lambda weights: _statistics(chosen, truth, weights),
        patients,
        resamples=resamples,
        seed=seed,
    )
    return {
        "mean_auc": float(point["mean_auc"][0]),
        "accuracy": float(point["accuracy"][0]),
        "balanced_accuracy": float(point["balanced_accuracy"][0]),
        "interval": {k: intervals[k] for k in ("mean_auc", "accuracy", "balanced_accuracy")},
        "classes": {
            name: {
                # The plain, unweighted definition; the weighted one gives the same.
                "auc": auc(truth[name][known] == 1, chosen[name][known]),
                **{m: float(point[f"{name}/{m}"][0]) for m in METRICS[1:]},
                "interval": {m: intervals[f"{name}/{m}"] for m in METRICS},
                **counts[name],
            }
            for name in truth
            for known in (~np.isnan(truth[name]),)
        },
        "refused": refused,
    }


def _statistics(
    differences: Mapping[str, Floats], truth: Mapping[str, Floats], weights: Floats
) -> dict[str, Floats]:
    result: dict[str, Floats] = {}
    for name, difference in differences.items():
        known = ~np.isnan(truth[name])
        positive, value, w = truth[name][known] == 1, difference[known], weights[:, known]
        right = (value > 0) == positive
        result[f"{name}/auc"] = weighted_auc(positive, value, w)
        result[f"{name}/accuracy"] = weighted_mean(right, w)
        sides = [weighted_mean(right[side], w[:, side]) for side in (positive, ~positive)]
        result[f"{name}/balanced_accuracy"] = (sides[0] + sides[1]) / 2
    for metric, title in zip(METRICS, ("mean_auc", *METRICS[1:]), strict=True):
        result[title] = np.mean([result[f"{name}/{metric}"] for name in differences], axis=0)
    return result
