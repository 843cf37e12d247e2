"""Zero-shot classification from scores to metrics: what the two sides of each class say of images.

Per class, a positive and a negative score: the mean over that side's prompts of the trained
image-sentence similarity. The decision is the larger one (a tie counts as negative); AUC and
average precision are on the difference d, calibration on ``sigmoid(g2 d)``.

A model that ranks images by "X" may not understand "no X" at all (CARZero on ChestX-ray14: AUC
.81 from the positive prompts alone, .43 from the negative ones), and the difference of the two
hides it. So both sides are kept, and measured each for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.labels import LabelPolicy
from medclip_debias.data.prompts import PromptSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.bootstrap import weighted_auc, weighted_mean
from medclip_debias.evaluation.catalogue import CHANCE
from medclip_debias.evaluation.metrics import (
    best_threshold,
    reliability,
    sigmoid,
    weighted_average_precision,
    weighted_ece,
    weighted_f1,
)
from medclip_debias.evaluation.protocol import Draw, Measured, Skipped
from medclip_debias.evaluation.table import Row

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
NO_COLUMN, ONE_VALUE = "no such label column", "one label value only"
AUCS = {
    "auc": "mean_auc",
    "auc_positive": "mean_auc_positive",
    "auc_negative": "mean_auc_negative",
}
CONTRADICTION = "contradiction_rate"
AVERAGED = (*AUCS, "accuracy", "balanced_accuracy", "average_precision", "ece", "f1")
MULTICLASS_RULE = (
    "One image counts when exactly one of the classes is 1 and every other is 0 or blank; an "
    "uncertain label (-1) of another class leaves it out. A list of images, when given, says "
    "itself. The answer is the class whose positive prompts score highest on average."
)


# ------------------------------------------------------------------------ prompts to scores


def side_columns(prompts: PromptSet) -> list[list[int]]:
    """Places of each side's texts: positive and negative of the first class, of the second, ..."""
    column = {text: number for number, text in enumerate(prompts.texts)}
    # In one order, so that sides with the same prompts score the same to the last bit.
    return [
        sorted(column[text] for text in side)
        for sides in prompts.classes.values()
        for side in (sides.positive, sides.negative)
    ]


@dataclass(frozen=True)
class SideScores:
    """The two scores of each class: ``[images]`` by class, the same classes on both sides.

    ``stored`` are differences as an item table has them, which may lack the sides.
    """

    positive: Mapping[str, Floats]
    negative: Mapping[str, Floats]
    shared: bool = False
    stored: Mapping[str, Floats] | None = None

    @classmethod
    def of(cls, scores: Floats, prompts: PromptSet) -> Self:
        """From scores ``[images, texts]`` in the order of ``prompts.texts``."""
        columns = side_columns(prompts)
        means = [scores[:, side].mean(axis=1) for side in columns]
        positive, negative = (
            dict(zip(prompts.classes, means[first::2], strict=True)) for first in (0, 1)
        )
        return cls(positive, negative, shared=len(set(map(tuple, columns))) < len(columns))

    @cached_property
    def differences(self) -> dict[str, Floats]:
        """Positive minus negative score of each class: ``[images]``."""
        if self.stored is not None:
            return dict(self.stored)
        return {name: score - self.negative[name] for name, score in self.positive.items()}

    @cached_property
    def contradictions(self) -> dict[str, Bools]:
        """Which images contradict themselves on each class ``[images]``; empty for one class.

        An image does when both sides of the class score strictly higher than either side of every
        other class: of all that could be said of it, the model finds "X" and "no X" the likeliest.
        No image does so on two classes.
        """
        names = list(self.positive)
        if len(names) < 2:
            return {}
        sides = np.stack([[self.positive[name], self.negative[name]] for name in names])
        lowest, highest = sides.min(axis=1), sides.max(axis=1)  # [classes, images]
        return {
            name: lowest[place] > np.delete(highest, place, axis=0).max(axis=0)
            for place, name in enumerate(names)
        }

    @property
    def chance(self) -> float | None:
        """Contradiction rate of scores in random order: ``1 / (2 classes - 1)``.

        Whichever of the sides is first, one of the others is its opposite. None for one class, and
        where two sides have the same prompts.
        """
        count = len(self.positive)
        return 1 / (2 * count - 1) if count > 1 and not self.shared else None


def prompt_differences(scores: Floats, prompts: PromptSet) -> dict[str, Floats]:
    """Positive minus negative score of each class: ``[images]``."""
    return SideScores.of(scores, prompts).differences


# ----------------------------------------------------------------------- scores to metrics


def class_statistics(
    sides: SideScores,
    truth: Mapping[str, Floats],
    weights: Floats,
    scale: float | None,
    thresholds: Mapping[str, float],
) -> dict[str, Floats]:
    """Every metric of the classes of ``truth`` under each row of ``weights [b, images]``: ``[b]``.

    ``CLASS/METRIC`` of each class, and the means over them (of contradictions the sum).
    """
    result: dict[str, Floats] = {}
    for name, labels in truth.items():
        known = ~np.isnan(labels)
        positive, value, w = labels[known] == 1, sides.differences[name][known], weights[:, known]
        right = (value > 0) == positive
        halves = [weighted_mean(right[half], w[:, half]) for half in (positive, ~positive)]
        of_class = {"auc": weighted_auc(positive, value, w)}
        if name in sides.positive:
            above, below = sides.positive[name][known], -sides.negative[name][known]
            of_class["auc_positive"] = weighted_auc(positive, above, w)
            of_class["auc_negative"] = weighted_auc(positive, below, w)
        of_class |= {
            "accuracy": weighted_mean(right, w),
            "balanced_accuracy": (halves[0] + halves[1]) / 2,
            "average_precision": weighted_average_precision(positive, value, w),
        }
        if scale is not None:
            of_class["ece"] = weighted_ece(positive, sigmoid(scale * value), w)
        if name in thresholds:
            of_class["f1"] = weighted_f1(positive, value >= thresholds[name], w)
        if name in sides.contradictions:
            of_class[CONTRADICTION] = weighted_mean(sides.contradictions[name], weights)
        result |= {f"{name}/{metric}": values for metric, values in of_class.items()}
    for metric in AVERAGED:
        of_metric = [result[f"{n}/{metric}"] for n in truth if f"{n}/{metric}" in result]
        if of_metric:
            result[AUCS.get(metric, metric)] = np.mean(of_metric, axis=0)
    if sides.contradictions:
        every = np.any(list(sides.contradictions.values()), axis=0)
        result[CONTRADICTION] = weighted_mean(every, weights)
    return result


def with_both_labels(labels: Mapping[str, Floats]) -> dict[str, Floats]:
    """The classes of which some image is 1 and some 0."""
    return {n: v for n, v in labels.items() if (v == 1).any() and (v == 0).any()}


Validation = tuple[Mapping[str, Floats], Mapping[str, Floats]]
"""Differences and labels of other images, on which the thresholds of F1 are chosen."""


def zero_shot(
    sides: SideScores,
    labels: Mapping[str, Floats],
    patients: Sequence[str],
    *,
    policy: LabelPolicy | None = None,
    scale: float | None = 1.0,
    validation: Validation | str = "no images to choose a threshold on",
    not_judged: Mapping[str, str] | None = None,
    draw: Draw | None = None,
    n: int | None = None,
) -> Measured:
    """Metrics per class and their means over the classes that have them, with intervals.

    Details are ``classes`` (counts, ``threshold`` and ``reliability``) and ``refused`` (classes
    with one label value only, with their counts).
    """
    policy = policy or LabelPolicy()
    truth: dict[str, Floats] = {}
    counts: dict[str, dict[str, int]] = {}
    refused: dict[str, dict[str, Any]] = {}
    of_refused: list[Row] = []
    for name, difference in sides.differences.items():
        values = np.asarray(labels.get(name, np.full(len(difference), np.nan)), dtype=np.float64)
        judged = policy.apply(values)
        counts[name] = _counts(values, judged)
        if counts[name]["positive"] and counts[name]["negative"]:
            truth[name] = judged
            continue
        reason = ONE_VALUE if name in labels else (not_judged or {}).get(name, NO_COLUMN)
        refused[name] = {"reason": reason, **counts[name]}
        if name in sides.contradictions:
            rate = float(sides.contradictions[name].mean())
            of_refused.append(Row(CONTRADICTION, rate, of_class=name))
    if not truth:
        found = "; ".join(
            f"{name} {c['positive']} present, {c['negative']} absent" for name, c in counts.items()
        )
        raise UserError(
            f"Zero-shot classification needs images with both labels of a class, and none has "
            f"them ({found}); evaluate a split with labels, or another label policy."
        )
    thresholds = {name: _threshold(name, validation, policy) for name in truth}
    bounds = {name: t["value"] for name, t in thresholds.items() if "value" in t}
    estimates = (draw or Draw()).estimates(
        lambda weights: class_statistics(sides, truth, weights, scale, bounds), patients
    )
    measured = estimates.rows(n=n)
    if sides.chance is not None:
        measured.append(Row(CONTRADICTION, sides.chance, group=CHANCE))
    classes = {}
    for name, judged in truth.items():
        known = ~np.isnan(judged)
        positive, values = judged[known] == 1, sides.differences[name][known]
        measured += estimates.rows(f"{name}/", n=len(positive), of_class=name)
        classes[name] = {
            "threshold": thresholds[name],
            "reliability": [] if scale is None else reliability(positive, sigmoid(scale * values)),
            **counts[name],
        }
    return Measured(measured + of_refused, {"classes": classes, "refused": refused})


def _counts(values: Floats, judged: Floats) -> dict[str, int]:
    return {
        "images": len(judged),
        "positive": int((judged == 1).sum()),
        "negative": int((judged == 0).sum()),
        "uncertain": int((values == -1).sum()),
        "blank": int(np.isnan(values).sum()),
        "left_out": int(np.isnan(judged).sum()),
    }


def _threshold(name: str, validation: Validation | str, policy: LabelPolicy) -> dict[str, Any]:
    """The threshold of best F1 on the validation images, or the reason for none."""
    if isinstance(validation, str):
        return {"reason": validation}
    differences, labels = validation
    if name not in labels:
        return {"reason": "no such label column on the images to choose a threshold on"}
    values = np.asarray(labels[name], dtype=np.float64)
    judged = policy.apply(values)
    counts = {key: n for key, n in _counts(values, judged).items() if key != "left_out"}
    known = ~np.isnan(judged)
    if not (judged == 1).any() or not (judged == 0).any():
        return {"reason": "one label value only on the images to choose a threshold on", **counts}
    value, f1 = best_threshold(judged[known] == 1, differences[name][known])
    return {"value": value, "f1_there": f1, **counts}


# -------------------------------------------------------------------------- several classes


def exclusive_classes(labels: Mapping[str, Floats], classes: Sequence[str]) -> NDArray[np.intp]:
    """Number of the one positive class of each image, -1 where there is not exactly one."""
    count = len(next(iter(labels.values())))
    values = np.stack([labels.get(name, np.full(count, np.nan)) for name in classes], axis=1)
    single = ((values == 1).sum(axis=1) == 1) & ~(values == -1).any(axis=1)
    return np.where(single, (values == 1).argmax(axis=1), -1)


def multiclass_accuracy(
    scores: Floats,
    truth: NDArray[np.integer],
    classes: Sequence[str],
    patients: Sequence[str],
    draw: Draw,
) -> Measured:
    """Accuracy of the highest-scoring class.

    Where several classes share the highest score, each gets an equal share of the prediction.

    Scores ``[images, classes]`` are means of the positive prompts. Besides the metrics there are
    ``images``, also of each class, and ``confusion`` (rows the truth, columns the predictions).
    """
    best = scores == scores.max(axis=1, keepdims=True)
    predicted = best / best.sum(axis=1, keepdims=True)
    hits = predicted[np.arange(len(truth)), truth]
    present = [number for number in range(len(classes)) if (truth == number).any()]
    if len(present) < 2:
        raise Skipped(
            "Multi-class accuracy needs images of at least two classes; there are "
            + ", ".join(f"{(truth == n).sum()} of {name}" for n, name in enumerate(classes))
            + "."
        )

    def statistics(weights: Floats) -> dict[str, Floats]:
        recalls = [weighted_mean(hits[truth == n], weights[:, truth == n]) for n in present]
        return {
            "multiclass_accuracy": weighted_mean(hits, weights),
            "multiclass_balanced_accuracy": np.mean(recalls, axis=0),
        }

    measured = draw.estimates(statistics, patients).rows(n=len(truth))
    measured += [Row(row.metric, 1 / len(classes), group=CHANCE) for row in measured]
    for number in present:
        own = hits[truth == number]
        recall = float(own.mean())
        measured.append(Row("multiclass_recall", recall, n=len(own), of_class=classes[number]))
    images = {name: {"images": int((truth == n).sum())} for n, name in enumerate(classes)}
    confusion = [predicted[truth == n].sum(axis=0).tolist() for n in range(len(classes))]
    details = {"images": len(truth), "classes": images, "confusion": confusion}
    return Measured(measured, details)
