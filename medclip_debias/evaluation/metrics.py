"""The metrics, each in the form that its test repeats with a plain loop or scikit-learn.

Those of a heatmap are closed forms (`medclip_debias.evaluation.upsampled`). Pixels that the model
did not see count neither inside nor outside the truth, but a truth pixel among them stays part of
it in the overlap metrics (what was not seen cannot be found).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from medclip_debias.evaluation.bootstrap import weighted_auc

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
CALIBRATION_BINS = 15

# The paper's: from -1 to 1 in steps of 0.05.
THRESHOLDS: Floats = np.arange(-20, 21) / 20
# Of those, the ones at which a useful map is neither all in nor all out.
MIDDLE_THRESHOLDS: Floats = np.arange(2, 11) / 20
UNION_EPSILON = 1e-6


# ------------------------------------------------------------------------------- heatmaps


def moments(values: NDArray[np.floating]) -> tuple[float, float]:
    """Mean and population variance, in double precision."""
    if values.min() == values.max():
        return float(values[0]), 0.0  # exactly: a sum's rounding would pass for variance
    array = values.astype(np.float64)
    mean = float(array.mean())
    array -= mean
    return mean, float(array @ array) / array.size


# ------------------------------------------------------------------------- classification


def auc(positive: ArrayLike, scores: ArrayLike) -> float:
    """Area under the ROC curve: how often a positive scores above a negative, ties half.

    NaN when all labels are equal.
    """
    values = np.asarray(scores, dtype=np.float64)
    return float(weighted_auc(positive, values, np.ones((1, values.size)))[0])


def mean_ranks(values: ArrayLike) -> Floats:
    """Ranks from 1 (lowest); equal values share the mean of their ranks."""
    array = np.asarray(values, dtype=np.float64)
    _, group, count = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - (count - 1) / 2)[group])


def average_precision(positive: Bools, scores: Floats) -> float:
    """Step-wise area under the precision-recall curve, as scikit-learn defines it.

    ``sum_n (R_n - R_{n-1}) P_n`` over the distinct scores from high to low; NaN without positives.
    """
    return float(weighted_average_precision(positive, scores, np.ones((1, len(scores))))[0])


def weighted_average_precision(
    positive: Bools, scores: Floats, weights: Floats, total: Floats | None = None
) -> Floats:
    """`average_precision` under each row of ``weights [b, n]``: ``[b]``.

    ``total [b]`` is of all positives where some of them have no score, and are never found.
    """
    order = np.argsort(-scores, kind="stable")
    values, labels, w = scores[order], positive[order], weights[:, order]
    first = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    gained = np.add.reduceat(w * labels, first, axis=1)
    taken = np.add.reduceat(w, first, axis=1)
    hits = np.cumsum(gained, axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = hits / np.cumsum(taken, axis=1)
        # A group without weight adds nothing, though its precision may be 0 / 0.
        steps = np.where(gained > 0, gained * precision, 0.0)
        return np.asarray(steps.sum(axis=1) / (hits[:, -1] if total is None else total))


def best_threshold(positive: Bools, scores: Floats) -> tuple[float, float]:
    """The score t with the highest F1 of ``score >= t``, and that F1.

    Candidates are the scores themselves; of several equally good ones, the highest.
    """
    order = np.argsort(-scores, kind="stable")
    values, labels = scores[order], positive[order]
    last = np.flatnonzero(np.r_[values[1:] != values[:-1], True])
    hits = np.cumsum(labels)[last]
    f1 = 2 * hits / (last + 1 + labels.sum())
    best = int(np.argmax(f1))
    return float(values[last][best]), float(f1[best])


def highest_shares(scores: NDArray[np.floating]) -> Floats:
    """What each of the ``scores [items, candidates]`` has of being the item's highest.

    1 for the highest alone, 0 for lower ones; equals share it.
    """
    highest = scores == scores.max(axis=1, keepdims=True)
    return np.asarray(highest / highest.sum(axis=1, keepdims=True))


def weighted_f1(positive: Bools, predicted: Bools, weights: Floats) -> Floats:
    """F1 ``2 TP / (2 TP + FP + FN)`` under each row of ``weights``; NaN where it is 0 / 0."""
    both = weights @ (positive & predicted)
    with np.errstate(invalid="ignore"):
        return np.asarray(2 * both / (weights @ positive + weights @ predicted))


def sigmoid(values: Floats) -> Floats:
    """``1 / (1 + exp(-v))`` without overflow."""
    return np.asarray(0.5 * (1 + np.tanh(values / 2)))


def calibration_bin(probability: Floats) -> NDArray[np.intp]:
    """Bin of each probability: 15 of equal width on [0, 1], the last one closed."""
    return np.minimum((probability * CALIBRATION_BINS).astype(np.intp), CALIBRATION_BINS - 1)


def weighted_ece(
    positive: Bools,
    probability: Floats,
    weights: Floats,
    bins: NDArray[np.intp] | None = None,
) -> Floats:
    """Expected calibration error: ``sum_bins share |mean probability - share of positives|``.

    Labels and probabilities are ``[n]``, weights ``[b, n]``; ``bins`` is the bin of each image,
    below 15, by default of equal width.
    """
    bins = calibration_bin(probability) if bins is None else bins
    member = bins[:, None] == np.arange(CALIBRATION_BINS)
    gap = weights @ (member * (probability - positive)[:, None])
    with np.errstate(invalid="ignore"):
        return np.asarray(np.abs(gap).sum(axis=1) / weights.sum(axis=1))


def reliability(positive: Bools, probability: Floats) -> list[dict[str, Any]]:
    """The bins that hold images: their bounds, counts, mean probability, share of positives."""
    bins = calibration_bin(probability)
    return [
        {
            "from": number / CALIBRATION_BINS,
            "to": (number + 1) / CALIBRATION_BINS,
            "images": int(members.sum()),
            "probability": float(probability[members].mean()),
            "positive": float(positive[members].mean()),
        }
        for number in range(CALIBRATION_BINS)
        for members in (bins == number,)
        if members.any()
    ]


# ------------------------------------------------------------------------------ retrieval


def first_relevant_rank(scores: NDArray[np.floating], relevant: Bools, block: int = 512) -> Floats:
    """Rank, from 1, of the best-scored relevant candidate of each query.

    Ties get the mean rank, that is the rank expected when equal scores are put in random
    order: with m irrelevant and r relevant candidates at the best relevant score,
    ``1 + (irrelevant above) + m / (r + 1)``.

    Both are ``[queries, candidates]``, each query with a relevant one; ``block`` bounds memory.
    """
    ranks = np.empty(len(scores))
    for start in range(0, len(scores), block):
        part = slice(start, start + block)
        s, good = scores[part], relevant[part]
        if not good.any(axis=1).all():
            raise ValueError("a query has no relevant candidate")
        best = np.where(good, s, -np.inf).max(axis=1, keepdims=True)
        above = ((s > best) & ~good).sum(axis=1)
        level = s == best
        tied, right = (level & ~good).sum(axis=1), (level & good).sum(axis=1)
        ranks[part] = 1 + above + tied / (right + 1)
    return ranks


def target_ranks(
    scores: NDArray[np.floating], query: NDArray[np.integer], target: NDArray[np.integer]
) -> Floats:
    """Rank, from 1, of candidate ``target[p]`` for query ``query[p]``; ties get the mean rank.

    ``scores [queries, candidates]`` are high where a candidate is good.
    """
    ranks = np.empty(len(query))
    order = np.argsort(query, kind="stable")
    bounds = np.searchsorted(query[order], np.arange(len(scores) + 1))
    for row in range(len(scores)):
        pairs = order[bounds[row] : bounds[row + 1]]
        if not pairs.size:
            continue
        ascending = np.sort(scores[row])
        values = scores[row, target[pairs]]
        below = np.searchsorted(ascending, values, "left")
        reached = np.searchsorted(ascending, values, "right")
        ranks[pairs] = len(ascending) - reached + (reached - below + 1) / 2
    return ranks


def good_shares(scores: Floats, good: NDArray[np.bool_], k: int) -> Floats:
    """Share of good candidates among the ``k`` best of each query ``[queries]``.

    With equal scores at the k-th place, the share expected when they are put in random order.
    ``scores [queries, candidates]`` are -inf for what is no candidate.
    """
    places = scores.shape[1] - k
    bound = np.partition(scores, places, axis=1)[:, [places]]
    above, level = scores > bound, scores == bound
    room = k - above.sum(axis=1)
    share = (good & level).sum(axis=1) / level.sum(axis=1)
    return np.asarray(((good & above).sum(axis=1) + room * share) / k)
