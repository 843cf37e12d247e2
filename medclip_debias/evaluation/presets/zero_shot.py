"""Zero-shot classification under a preset: prompts to class scores, decisions, metrics.

Pure functions of arrays. Labels are 1, 0 or NaN (left out); published scorers know no NaN, and
without any the metrics are theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.prompts import PromptSet
from medclip_debias.evaluation.metrics import (
    auc,
    average_precision,
    highest_shares,
    sigmoid,
)
from medclip_debias.evaluation.presets import ZeroShotRule
from medclip_debias.evaluation.sides import SideScores, labelled_scores, side_columns

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Scores = Mapping[str, Floats]

# ------------------------------------------------------------------------ prompts to scores


def side_vectors(vectors: NDArray[np.floating], prompts: PromptSet) -> Floats:
    """One unit vector for each side: the mean of its prompts' vectors, at unit length.

    ``[texts, D]`` in the order of ``prompts.texts`` gives ``[2 classes, D]``: positive and negative
    side of the first class, of the second, ...
    """
    means = np.stack(
        [vectors[columns].mean(axis=0, dtype=np.float64) for columns in side_columns(prompts)]
    )
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    return np.asarray(means / np.where(lengths > 0, lengths, 1))


def side_scores(
    rule: ZeroShotRule,
    scores: NDArray[np.floating],
    prompts: PromptSet,
    ensembles: NDArray[np.floating] | None = None,
) -> SideScores:
    """The scores of both sides of each class, under a rule.

    ``scores [images, texts]``; ``ensembles [images, 2 classes]`` of `side_vectors` for ``prompts:
    embedding``, not needed where every side has one prompt.
    """
    if rule.prompts == "embedding" and any(len(side) > 1 for side in side_columns(prompts)):
        if ensembles is None:
            raise ValueError("a mean of embeddings needs the scores of side_vectors")
        sides = np.asarray(ensembles, dtype=np.float64).T
        positive, negative = (
            dict(zip(prompts.classes, sides[first::2], strict=True)) for first in (0, 1)
        )
        return SideScores(positive, negative)
    one = np.max if rule.prompts == "max" else np.mean
    return SideScores.of(np.asarray(scores, dtype=np.float64), prompts, one)


def zero_shot_scores(rule: ZeroShotRule, sides: SideScores) -> Scores:
    """The score of each class: ``[images]``, high where the class is present."""
    if rule.score == "positive":
        return sides.positive
    if rule.score == "difference":
        return sides.differences
    return {name: sigmoid(d) for name, d in sides.differences.items()}  # exp(p)/(exp(p) + exp(n))


# ------------------------------------------------------------------------------- decisions


def thresholds(scores: Scores, truth: Scores) -> dict[str, float]:
    """Where each class's decision lies, chosen on validation images; a class may be absent."""
    known = labelled_scores(scores, truth)
    return {name: best_mcc_threshold(*pair)[0] for name, pair in known.items()}


def best_mcc_threshold(positive: Bools, scores: Floats) -> tuple[float, float]:
    """The score t with the highest MCC of ``score >= t``, and that MCC, as CheXzero chooses it.

    Candidates are the corners of the ROC curve; of several equally good ones, the lowest.
    """
    from sklearn.metrics import roc_curve

    # From high to low; points between two on one line are left out, the first is no score.
    false_rate, true_rate, values = (part[1:] for part in roc_curve(positive, scores))
    yes, no = positive.sum(), (~positive).sum()
    tp, fp = np.rint(true_rate * yes), np.rint(false_rate * no)
    square = (tp + fp) * yes * no * (yes + no - tp - fp)
    mcc = (tp * no - fp * yes) / np.sqrt(np.where(square > 0, square, np.inf))
    best = len(mcc) - 1 - int(np.argmax(mcc[::-1]))
    return float(values[best]), float(mcc[best])


def decisions(
    rule: ZeroShotRule, scores: Scores, chosen: Mapping[str, float] | None = None
) -> dict[str, Bools]:
    """Which images have each class ``[images]``; a class without a threshold is absent."""
    if rule.decision == "none":
        return {}
    if rule.decision == "sides":
        middle = 0.5 if rule.score == "softmax" else 0.0
        return {name: values > middle for name, values in scores.items()}
    return {n: values >= chosen[n] for n, values in scores.items() if chosen and n in chosen}


# --------------------------------------------------------------------------------- metrics


def _precision_recall_area(positive: Bools, scores: Floats) -> float:
    """Area under precision over recall by trapezoids, from recall 0 at precision 1."""
    from sklearn.metrics import auc as area
    from sklearn.metrics import precision_recall_curve

    precision, recall, _ = precision_recall_curve(positive, scores)
    return float(area(recall, precision))


OF_SCORES: dict[str, Callable[[Bools, Floats], float]] = {
    "auc": auc,
    "auprc": _precision_recall_area,
    "average_precision": average_precision,
}
POOLED = {"auc_micro": "auc", "auprc_micro": "auprc"}
OF_DECISIONS = {
    "accuracy": "accuracy_score",
    "balanced_accuracy": "balanced_accuracy_score",
    "f1": "f1_score",
    "mcc": "matthews_corrcoef",
}
"""Functions of scikit-learn."""
METRICS = {
    "auc": "mean AUC of the classes",
    "auc_micro": "AUC of all pairs of image and class together",
    "auc_weighted": "mean AUC of the classes, each weighted by its positive images",
    "auc_positive": "mean AUC of the positive prompts alone",
    "auprc": "mean area under the precision-recall curve, by trapezoids",
    "auprc_micro": "the same of all pairs of image and class together",
    "average_precision": "mean average precision, by steps",
    "accuracy": "mean share of right decisions",
    "balanced_accuracy": "mean of sensitivity and specificity",
    "f1": "mean F1 of the decisions",
    "mcc": "mean Matthews correlation of the decisions",
    "one_of_several": "share of images of one class whose class scores highest",
    "rounded_softmax_accuracy": "mean over classes of the share of those images for which the"
    " softmax over the classes, rounded, is the label",
}
"""What ``metrics`` of a rule may name."""


def zero_shot_metrics(
    rule: ZeroShotRule,
    scores: Scores,
    truth: Scores,
    *,
    chosen: Mapping[str, float] | None = None,
    positive: Scores | None = None,
) -> dict[str, Any]:
    """The metrics of a rule that are of single classes, and their means.

    Truth is 1, 0 or NaN; ``chosen`` are `thresholds` of other images; ``positive`` the positive
    sides' scores. A metric is None where no class has one; ``refused`` are classes with one label
    value only.
    """
    from sklearn import metrics

    known, present = labelled_scores(scores, truth), decisions(rule, scores, chosen)
    classes: dict[str, dict[str, float]] = {}
    for name, (labels, values) in known.items():
        seen = ~np.isnan(truth[name])
        of_class = {m: OF_SCORES[m](labels, values) for m in rule.metrics if m in OF_SCORES}
        if "auc_positive" in rule.metrics and positive is not None:
            of_class["auc_positive"] = auc(labels, positive[name][seen])
        for metric, function in OF_DECISIONS.items() if name in present else ():
            if metric in rule.metrics:
                decided = present[name][seen]
                of_class[metric] = float(getattr(metrics, function)(labels, decided))
        classes[name] = of_class
    result: dict[str, Any] = {}
    for metric in rule.metrics:
        if metric in POOLED and known:
            pooled = [np.concatenate(part) for part in zip(*known.values(), strict=True)]
            result[metric] = OF_SCORES[POOLED[metric]](pooled[0], pooled[1])
        elif metric == "auc_weighted" and known:
            counts = [int(labels.sum()) for labels, _ in known.values()]
            aucs = [auc(labels, values) for labels, values in known.values()]
            result[metric] = float(np.average(aucs, weights=counts))
        elif metric not in ("one_of_several", "rounded_softmax_accuracy"):
            each = [of_class[metric] for of_class in classes.values() if metric in of_class]
            result[metric] = float(np.mean(each)) if each else None
    result["classes"] = classes
    result["refused"] = [name for name in scores if name not in known]
    if rule.decision == "mcc":
        result["thresholds"] = {name: (chosen or {}).get(name) for name in known}
    return result


def one_of_several(
    rule: ZeroShotRule, scores: Scores, truth: NDArray[np.integer]
) -> dict[str, float]:
    """The metrics of a rule on images of exactly one class, as CheXpert 5x200."""
    values = np.stack(list(scores.values()), axis=1)
    if rule.several == "standardised" and len(values) > 1:
        spread = values.std(axis=0)
        values = (values - values.mean(axis=0)) / np.where(spread > 0, spread, 1)
    result = {}
    if "one_of_several" in rule.metrics:
        if rule.several == "highest":
            hits = highest_shares(values)[np.arange(len(truth)), truth]
        else:
            hits = values.argmax(axis=1) == truth
        result["one_of_several"] = float(hits.mean())
    if "rounded_softmax_accuracy" in rule.metrics:
        powers = np.exp(values - values.max(axis=1, keepdims=True))
        chosen = powers / powers.sum(axis=1, keepdims=True) > 0.5
        right = chosen == (np.asarray(truth)[:, None] == np.arange(values.shape[1]))
        result["rounded_softmax_accuracy"] = float(right.mean())
    return result
