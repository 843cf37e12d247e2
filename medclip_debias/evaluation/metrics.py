"""The metrics, each in the form that its test repeats with a plain loop.

Those of a heatmap are closed forms (`medclip_debias.evaluation.upsampled`). Pixels that the model
did not see count neither inside nor outside the truth, but a truth pixel among them stays part of
it in the overlap metrics (what was not seen cannot be found).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating]
Mask = NDArray[np.bool_]

# The paper's: from -1 to 1 in steps of 0.05.
THRESHOLDS: NDArray[np.float64] = np.arange(-20, 21) / 20
# Of those, the ones at which a useful map is neither all in nor all out.
MIDDLE_THRESHOLDS: NDArray[np.float64] = np.arange(2, 11) / 20
UNION_EPSILON = 1e-6


# ------------------------------------------------------------------------------- heatmaps


def moments(values: Floats) -> tuple[float, float]:
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
    labels, values = np.asarray(positive, dtype=bool), np.asarray(scores, dtype=np.float64)
    count = int(labels.sum())
    if count in (0, labels.size):
        return float("nan")
    above = mean_ranks(values)[labels].sum() - count * (count + 1) / 2
    return float(above / (count * (labels.size - count)))


def mean_ranks(values: ArrayLike) -> NDArray[np.float64]:
    """Ranks from 1 (lowest); equal values share the mean of their ranks."""
    array = np.asarray(values, dtype=np.float64)
    _, group, count = np.unique(array, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return np.asarray((last - (count - 1) / 2)[group])


# ------------------------------------------------------------------------------ retrieval


def first_relevant_rank(scores: Floats, relevant: Mask, block: int = 512) -> NDArray[np.float64]:
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
        tied, found = (level & ~good).sum(axis=1), (level & good).sum(axis=1)
        ranks[part] = 1 + above + tied / (found + 1)
    return ranks


def recall_at(ranks: ArrayLike, k: int) -> float:
    """Share of queries whose rank is at most ``k``."""
    return float((np.asarray(ranks) <= k).mean())


def median_rank(ranks: ArrayLike) -> float:
    """Median of the ranks (the mean of the middle two when their number is even)."""
    return float(np.median(np.asarray(ranks)))
