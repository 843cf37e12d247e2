"""Percentile bootstrap over patients.

Images and phrases of one patient are not independent, so patients are drawn with replacement
and bring all their items along. A resample is a row of whole-number weights, one for each
item, and every statistic has a weighted form: no item is ever copied, and all statistics of one
protocol see the same resamples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
# Weights [resamples, items] to named replicates [resamples].
Statistics = Callable[[Floats], Mapping[str, Floats]]
Interval = tuple[float, float]


def bootstrap_intervals(
    statistics: Statistics,
    patients: Sequence[str],
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> dict[str, Interval | None]:
    """Percentile intervals of several statistics.

    A resample in which a statistic is undefined (NaN, as an AUC without positives) is left out
    of that statistic's interval. The interval is None when more than half were, when there are
    fewer than two patients, or when ``resamples`` is 0.

    Args:
        statistics: from weights ``[b, items]`` to a mapping of replicates ``[b]``.
        patients: patient of each item.
        resamples: how many times patients are drawn.
        seed: equal seeds give equal intervals.
        level: nominal coverage.
    """
    parts: dict[str, list[Floats]] = {}
    for weights in resample_weights(patients, resamples, seed):
        for name, values in statistics(weights).items():
            parts.setdefault(name, []).append(np.asarray(values, dtype=np.float64))
    if not parts:  # the names, all the same
        once = statistics(np.ones((1, len(patients))))
        return dict.fromkeys(once)
    enough = len(set(patients)) > 1
    return {
        name: percentile_interval(np.concatenate(values), level) if enough else None
        for name, values in parts.items()
    }


def resample_weights(
    patients: Sequence[str], resamples: int, seed: int, block: int = 100
) -> Iterator[Floats]:
    """Yield blocks ``[b, items]`` of how often each item is drawn."""
    names, patient_of = np.unique(
        np.asarray(patients, dtype=object).astype(str), return_inverse=True
    )
    rng = np.random.default_rng(seed)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        counts = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=size)
        yield counts[:, patient_of].astype(np.float64)


def percentile_interval(replicates: Floats, level: float = 0.95) -> Interval | None:
    """Central interval that holds ``level`` of the defined replicates."""
    defined = replicates[~np.isnan(replicates)]
    if 2 * defined.size < replicates.size or not defined.size:
        return None
    low, high = np.quantile(defined, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# -------------------------------------------------------------------- weighted statistics


def weighted_mean(values: ArrayLike, weights: Floats) -> Floats:
    """Mean of ``values [items]`` under each row of ``weights``; NaN where all weights are 0."""
    with np.errstate(invalid="ignore"):
        return np.asarray((weights @ np.asarray(values, dtype=np.float64)) / weights.sum(axis=1))


def weighted_auc(positive: ArrayLike, scores: ArrayLike, weights: Floats) -> Floats:
    """AUC (ties half) under each row of ``weights``; NaN where a class has no weight."""
    order = np.argsort(np.asarray(scores), kind="stable")
    labels = np.asarray(positive, dtype=bool)[order]
    values = np.asarray(scores)[order]
    first = np.flatnonzero(np.r_[True, values[1:] != values[:-1]])
    w = weights[:, order]
    above = np.add.reduceat(w * labels, first, axis=1)
    below = np.add.reduceat(w * ~labels, first, axis=1)
    beaten = np.cumsum(below, axis=1) - below / 2
    with np.errstate(invalid="ignore"):
        pairs = above.sum(axis=1) * below.sum(axis=1)
        return np.asarray((above * beaten).sum(axis=1) / pairs)


def weighted_median(values: ArrayLike, weights: Floats) -> Floats:
    """Median of ``values`` where each is repeated as its (whole-number) weight says."""
    order = np.argsort(np.asarray(values), kind="stable")
    ordered = np.asarray(values, dtype=np.float64)[order]
    reached = np.cumsum(weights[:, order], axis=1)
    total = reached[:, -1]
    lower = (reached < np.floor((total + 1) / 2)[:, None]).sum(axis=1)
    upper = (reached < (np.floor(total / 2) + 1)[:, None]).sum(axis=1)
    last = len(ordered) - 1
    middle = (ordered[np.minimum(lower, last)] + ordered[np.minimum(upper, last)]) / 2
    return np.asarray(np.where(total > 0, middle, np.nan))
