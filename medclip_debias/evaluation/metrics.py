"""The metrics, each in the form that its test repeats with a plain loop.

Heatmap metrics take a score map and a truth mask of one shape. NaN marks pixels that the model
did not see: they count neither inside nor outside, but a truth pixel among them stays part of
the truth in the overlap metrics (what was not seen cannot be found).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class InsideOutside:
    """A map's seen scores inside and outside a mask, and how many mask pixels were not seen."""

    inside: Floats
    outside: Floats
    hidden: int

    @classmethod
    def of(cls, scores: Floats, mask: Mask) -> InsideOutside:
        """Sort the pixels of ``scores`` by ``mask`` (both ``[H, W]``)."""
        if scores.shape != mask.shape:
            raise ValueError(f"map {scores.shape} and mask {mask.shape} differ in shape")
        inside, outside = scores[mask], scores[~mask]
        seen = inside[~np.isnan(inside)]
        return cls(seen, outside[~np.isnan(outside)], len(inside) - len(seen))

    def cnr(self, signed: bool = False) -> float:
        """See `cnr`."""
        if not self.inside.size or not self.outside.size:
            return 0.0
        (mean_in, var_in), (mean_out, var_out) = moments(self.inside), moments(self.outside)
        if var_in + var_out == 0:
            return 0.0
        contrast = (mean_in - mean_out) / math.sqrt(var_in + var_out)
        return contrast if signed else abs(contrast)

    def iou(self, thresholds: Sequence[float] | Floats) -> NDArray[np.float64]:
        """Intersection over union of ``score >= t`` and the mask, for each threshold."""
        hit = count_at_least(self.inside, thresholds)
        union = self.inside.size + self.hidden + count_at_least(self.outside, thresholds)
        return np.asarray(hit / (union + UNION_EPSILON))

    def pointing_game(self) -> float:
        """See `pointing_game`."""
        if not self.inside.size or not self.outside.size:
            return float(self.inside.size > 0)
        highest = max(self.inside.max(), self.outside.max())
        hit = int((self.inside == highest).sum())
        return hit / (hit + int((self.outside == highest).sum()))


def cnr(scores: Floats, mask: Mask, *, signed: bool = False) -> float:
    """Contrast-to-noise ratio ``|mean_in - mean_out| / sqrt(var_in + var_out)``.

    Population variances, NaN ignored. 0 when nothing was seen inside or outside the mask, and
    for a map without any variance, where the ratio is undefined.

    Args:
        scores: ``[H, W]``.
        mask: ``[H, W]``, True inside the truth.
        signed: keep the sign: negative where the truth scores lower than the rest. The
            absolute value, the paper's, rewards a map that points away from the truth.
    """
    return InsideOutside.of(scores, mask).cnr(signed)


def miou(scores: Floats, mask: Mask, thresholds: Sequence[float] | Floats = THRESHOLDS) -> float:
    """Mean over thresholds t of the IoU of ``score >= t`` and the mask (union + 1e-6)."""
    return float(InsideOutside.of(scores, mask).iou(thresholds).mean())


def pointing_game(scores: Floats, mask: Mask) -> float:
    """1 where the highest pixel lies inside the mask, else 0.

    With several highest pixels, the share of them inside: what drawing one of them at random
    gives on average.
    """
    return InsideOutside.of(scores, mask).pointing_game()


def moments(values: Floats) -> tuple[float, float]:
    """Mean and population variance, in double precision."""
    if values.min() == values.max():
        return float(values[0]), 0.0  # exactly: a sum's rounding would pass for variance
    array = values.astype(np.float64)
    mean = float(array.mean())
    array -= mean
    return mean, float(array @ array) / array.size


def count_at_least(values: Floats, thresholds: Sequence[float] | Floats) -> NDArray[np.int64]:
    """How many of ``values`` reach each threshold, compared as float64.

    Thresholds below the lowest or above the highest value need no pass over the pixels, and
    the others compare in the values' own type, which is several times faster.
    """
    counts = np.zeros(len(thresholds), dtype=np.int64)
    if not values.size:
        return counts
    low, high = values.min(), values.max()
    for place, threshold in enumerate(np.asarray(thresholds, dtype=np.float64)):
        # The lowest number of the values' type that is not below the threshold: comparing
        # with it gives the same answer as comparing in float64.
        bound = values.dtype.type(threshold)
        if np.float64(bound) < threshold:
            bound = np.nextafter(bound, values.dtype.type(np.inf))
        if bound <= low:
            counts[place] = values.size
        elif bound <= high:
            counts[place] = np.count_nonzero(values >= bound)
    return counts


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


def auc_interval(positive: ArrayLike, negative: ArrayLike) -> tuple[float, float, float]:
    """AUC of scores with and without a finding, and the ends of its 95% interval.

    DeLong et al. 1988: the variance is that of the shares of negatives below each positive over
    the positives, plus that of the shares of positives above each negative over the negatives; of
    one positive or negative it is not known, and the interval is [0, 1].
    """
    above, below = (np.sort(np.asarray(side, dtype=np.float64)) for side in (positive, negative))
    shares = [
        (np.searchsorted(other, side, "left") + np.searchsorted(other, side, "right"))
        / (2 * len(other))
        for side, other in ((above, below), (below, above))
    ]
    area = float(shares[0].mean())
    if min(len(above), len(below)) < 2:
        return area, 0.0, 1.0
    spread = 1.96 * float(np.sqrt(sum(share.var(ddof=1) / len(share) for share in shares)))
    return area, max(area - spread, 0.0), min(area + spread, 1.0)


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

    Args:
        scores: ``[queries, candidates]``, high = better.
        relevant: the same shape; every query has at least one relevant candidate.
        block: queries handled at a time, to bound memory.
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
