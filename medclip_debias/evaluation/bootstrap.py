"""Bootstrap over patients: percentile intervals, widened as few patients need it.

Images and phrases of one patient are not independent, so patients are sampled with replacement
and bring all their items along. A resample is a row of whole-number weights, one for each
item, and every statistic has a weighted form: no item is ever copied, and all statistics of one
protocol see the same resamples.

A plain percentile interval is too narrow for few patients, as a normal interval is that divides by
n and takes no t quantile. Hesterberg (2015) corrects it by taking quantiles further out; how far
depends on the degrees of freedom, which a jackknife over the patients gives for each statistic
(`Influence`): an AUC with six positive patients among a thousand has few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, stdtrit

Floats = NDArray[np.float64]
# Weights [resamples, items] to named replicates [resamples].
Statistics = Callable[[Floats], Mapping[str, Floats]]
Interval = tuple[float, float]
# Groups of patients that the jackknife leaves out, one after the other.
_GROUPS = 200
FEWEST = 4
"""Of fewer patients with a finding, or without it, nothing has an interval that rests on both.

A resample repeats the same two or three: their AUC's intervals held the truth 65 to 83 times in
100, those of four 82 to 85 times.
"""
BIASED = ("ece", "ece_equal_mass", "decisions_ece")
"""Errors of calibration: of few images they are too large, of a resample larger still."""


@dataclass(frozen=True)
class Replicated:
    """A metric of some patients, and what it is on each resample of them ``[B]``.

    ``without`` is it without each patient, or group of patients, in turn (`jackknife_weights`);
    both are empty without resamples. One that is ``biased`` has no interval, alone or in a
    difference.
    """

    value: float
    replicates: Floats
    without: Floats
    patients: int
    biased: bool = False

    @property
    def influence(self) -> Influence:
        """On how many patients it rests."""
        return influence(self.without, self.patients)

    @property
    def rests_on_one(self) -> bool:
        """Whether it is undefined without one patient, as an AUC without its only positive.

        How it would turn out with another one is not known, so it has no interval and no test.
        """
        return bool(np.isnan(self.without).any())

    @property
    def interval(self) -> Interval | None:
        """Its expanded 95% percentile interval; None where there is none."""
        if self.biased or self.rests_on_one or not self.replicates.size:
            return None
        return expanded_interval(self.replicates, self.influence)

    def minus(self, other: Replicated) -> Replicated:
        """The difference of two metrics that were resampled together."""
        gap, without = self.replicates - other.replicates, self.without - other.without
        return Replicated(self.value - other.value, gap, without, self.patients, self.biased)


def replicates(
    runs: Mapping[str, Statistics], patients: Sequence[str], *, resamples: int, seed: int
) -> dict[str, dict[str, Replicated]]:
    """Every statistic of every run, on the same resampled patients: run to name to metric.

    Fewer than two patients allow no resample.
    """

    def collected(blocks: Iterable[Floats]) -> dict[tuple[str, str], Floats]:
        parts: dict[tuple[str, str], list[Floats]] = {}
        for weights in blocks:
            for label, run in runs.items():
                for name, values in run(weights).items():
                    parts.setdefault((label, name), []).append(np.asarray(values, np.float64))
        return {place: np.concatenate(values) for place, values in parts.items()}

    count = len(set(patients))
    drawn = count > 1 and resamples > 0
    resampled = collected(resample_weights(patients, resamples, seed) if drawn else ())
    without = collected(jackknife_weights(patients) if drawn else ())
    metrics: dict[str, dict[str, Replicated]] = {label: {} for label in runs}
    for (label, name), value in collected([np.ones((1, len(patients)))]).items():
        drawn_values = resampled.get((label, name), np.empty(0))
        left_out = without.get((label, name), np.empty(0))
        biased = name.rpartition("/")[2] in BIASED
        metrics[label][name] = Replicated(float(value[0]), drawn_values, left_out, count, biased)
    return metrics


def numbered(patients: Sequence[str]) -> tuple[int, NDArray[np.intp]]:
    """How many patients there are, and the number of each item's."""
    names, owner = np.unique(np.asarray(patients, dtype=object).astype(str), return_inverse=True)
    return len(names), owner


def too_few(positive: ArrayLike, patients: ArrayLike) -> tuple[int, int] | None:
    """How many patients have the finding, and how many not; None for `FEWEST` of both or more."""
    labels, names = np.asarray(positive, dtype=bool), np.asarray(patients, dtype=object)
    counts = len(set(names[labels])), len(set(names[~labels]))
    return counts if min(counts) < FEWEST else None


def resample_weights(
    patients: Sequence[str], resamples: int, seed: int, block: int = 100
) -> Iterator[Floats]:
    """Yield blocks ``[b, items]`` of how often each item is sampled."""
    number, patient_of = numbered(patients)
    rng = np.random.default_rng(seed)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        counts = rng.multinomial(number, np.full(number, 1 / number), size=size)
        yield counts[:, patient_of].astype(np.float64)


def jackknife_weights(
    patients: Sequence[str], groups: int = _GROUPS, block: int = 100
) -> Iterator[Floats]:
    """Yield blocks ``[b, items]`` of ones, with 0 for the patients that are left out in turn.

    With more patients than ``groups`` several are left out at a time.
    """
    number, patient_of = numbered(patients)
    groups = min(groups, number)
    group_of = patient_of % groups
    for start in range(0, groups, block):
        left_out = np.arange(start, min(start + block, groups))
        yield (group_of != left_out[:, None]).astype(np.float64)


@dataclass(frozen=True)
class Influence:
    """On how many ``patients`` a statistic rests: those without whom it is another, 2 at least.

    ``freedom`` are Satterthwaite's degrees of freedom of its variance, at most one fewer than the
    patients and 2 at least: small where a few patients make most of the variance.
    """

    patients: int
    freedom: float


def influence(without: Floats, patients: int) -> Influence:
    """Read the `Influence` off a statistic on `jackknife_weights` ``[groups]``.

    With changes ``d`` the variance is ``sum d^2`` up to a factor, and its own relative variance
    ``(sum d^4 / (sum d^2)^2) - 1 / groups``, half of which is 1 over the degrees of freedom.
    """
    values = without[~np.isnan(without)]
    if not values.size:
        return Influence(2, 2.0)
    changes = values - values.mean()
    changes = np.where(np.abs(changes) > 1e-12 * (1 + np.abs(values.mean())), changes, 0.0)
    count, all_matter = int((changes != 0).sum()), bool((changes != 0).all())
    number = max(patients if all_matter else count, 2)
    square, fourth = float((changes**2).sum()), float((changes**4).sum())
    spread = fourth / square**2 - 1 / values.size if square > 0 else 0.0
    freedom = min(number - 1.0, 2 / spread if spread > 0 else math.inf)
    return Influence(number, max(freedom, 2.0))


def t_quantile(freedom: float) -> float:
    """How many standard errors a 95% t interval reaches to either side."""
    return float(stdtrit(freedom, 0.975))


def expanded_interval(replicates: Floats, rests_on: Influence) -> Interval | None:
    """95% percentile interval with quantiles as far out as a t interval's ends are.

    The ends are at ``Phi(-+ t sqrt(n / (n - 1)))``, with the t quantile of ``rests_on.freedom``
    (Hesterberg 2015, section 5.3): 0.016 and 0.984 for 20 patients, instead of 0.025 and 0.975.
    The interval cannot leave the range of the statistic.
    """
    n = rests_on.patients
    reach = t_quantile(rests_on.freedom) * math.sqrt(n / (n - 1))
    return percentile_interval(replicates, 1 - 2 * float(ndtr(-reach)))


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


def mean_where_known(values: Floats, weights: Floats) -> Floats:
    """`weighted_mean` of the values that are not NaN; NaN where all are."""
    known = ~np.isnan(values)
    return weighted_mean(values[known], weights[:, known])


def mean_of_defined(values: Sequence[Floats]) -> Floats:
    """Mean over the first axis of what is not NaN; NaN where nothing is defined."""
    stacked = np.stack(list(values))
    known = ~np.isnan(stacked)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(known, stacked, 0).sum(axis=0) / known.sum(axis=0))


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
