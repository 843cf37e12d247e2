"""Is a difference real? Paired bootstrap, DeLong, seeds, Holm's correction, average ranks.

Two sources of chance stand behind a difference between two trained models: which patients were in
the test set (`difference`, `delong`), and which seed the training had (`paired_seeds`). `compared`
takes both. Write the difference of seed s on the patients P as ``d + a_s + b_P + e_sP``; the
variance of its mean over S seeds is the sum of the three parts. Over the seeds one sees ``a + e``,
over resampled patients ``b + e``; ``e`` stands in both, and is taken out once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtr

from medclip_debias.evaluation.bootstrap import (
    FEWEST,
    Interval,
    Replicated,
    numbered,
    t_quantile,
)
from medclip_debias.evaluation.metrics import mean_ranks

Floats = NDArray[np.float64]
ALPHA = 0.05


# --------------------------------------------------------------------------- the bootstrap


class Difference(NamedTuple):
    """A metric of one run minus that of another; 95% interval and two-sided p, None for none."""

    difference: float
    interval: Interval | None = None
    p: float | None = None


def mean_of(each: Sequence[Replicated]) -> Replicated:
    """The mean of several trainings' metrics, in every resample."""
    value, resampled, without = (
        np.mean([getattr(one, name) for one in each], axis=0)
        for name in ("value", "replicates", "without")
    )
    return Replicated(float(value), resampled, without, each[0].patients, each[0].biased)


def t_test(gap: float, error: float, freedom: float) -> tuple[Interval, float]:
    """Student's 95% interval of a difference, and the two-sided p of no difference."""
    if error <= 1e-12 * (1 + abs(gap)):  # rounding of equal sums
        p = float(abs(gap) <= 1e-12)
    else:
        p = float(2 * stdtr(freedom, -abs(gap) / error))
    reach = t_quantile(freedom) * error
    return (gap - reach, gap + reach), p


def least_p(patients: int) -> float:
    """``2^(1 - n)``: the smallest p that the signs of n patients' differences can give."""
    return min(1.0, 2.0 ** (1 - min(patients, 1000)))


def difference(run: Replicated, baseline: Replicated) -> Difference:
    """Compare one metric of two runs that were resampled together.

    Student's t interval and test with the bootstrap's standard error,
    ``d -+ t sd sqrt(n / (n - 1))``, with n and the degrees of freedom of the difference's
    `Influence`. No p-value is below `least_p`.
    """
    gap = run.minus(baseline)
    resampled = gap.replicates[~np.isnan(gap.replicates)]
    if gap.rests_on_one or resampled.size < 2 or 2 * resampled.size < gap.replicates.size:
        return Difference(gap.value)
    n, freedom = gap.influence.patients, gap.influence.freedom
    error = float(resampled.std(ddof=1)) * math.sqrt(n / (n - 1))
    interval, p = t_test(gap.value, error, freedom)
    p = max(p, least_p(gap.patients))
    return Difference(gap.value, None if gap.biased else interval, p)


# ---------------------------------------------------------------------------------- DeLong


@dataclass(frozen=True)
class AucTest:
    """DeLong's comparison of correlated AUCs ``[k]``, with their covariance ``[k, k]``.

    ``sides [2, k, k]`` is what the positives and the negatives add to it, ``patients`` how many
    have the ones and the others.
    """

    aucs: Floats
    covariance: Floats
    sides: Floats
    patients: tuple[int, int]

    def estimate(self, contrast: Sequence[int]) -> tuple[float, Interval, float]:
        """A sum of AUCs, its 95% interval, and the two-sided p of its being 0.

        Student's t with Satterthwaite's degrees of freedom, as Brunner & Munzel (2000): with a
        normal distribution two equal models of three positives differ in 13 of 100 comparisons.
        Of few positives (or negatives) even that is too sure, and p is not below `least_p`.
        """
        c = np.asarray(contrast, dtype=np.float64)
        value, variance = float(c @ self.aucs), max(float(c @ self.covariance @ c), 0.0)
        parts = np.einsum("i,sij,j->s", c, self.sides, c)
        squares = float((parts**2 / (np.array(self.patients) - 1)).sum())
        freedom = float(parts.sum()) ** 2 / squares if squares > 0 else 1.0
        interval, p = t_test(value, math.sqrt(variance), freedom)
        return value, interval, max(p, least_p(min(self.patients)))

    def difference(self, first: int = 0, second: int = 1) -> tuple[float, Interval, float]:
        """`estimate` of one AUC minus another."""
        places = range(len(self.aucs))
        return self.estimate([(place == first) - (place == second) for place in places])


def delong(
    positive: ArrayLike, scores: ArrayLike, patients: Sequence[str] | None = None
) -> AucTest:
    """AUCs of several scores on the same items, and their covariance.

    DeLong, DeLong & Clarke-Pearson (1988), eqs. 4 to 7, by midranks as Sun & Xu (2014): O(n log n)
    instead of O(m n). With ``patients`` the structural components are summed over each patient
    first, as Obuchowski (1997) does for clustered data, because images of one patient are not
    independent; with one image a patient both agree up to rounding.

    Scores are ``[k, n]`` or ``[n]``, finite. Fewer than two positives or negatives (or patients
    with them) are a ValueError: no variance can be estimated.
    """
    labels = np.asarray(positive, dtype=bool)
    values = np.atleast_2d(np.asarray(scores, dtype=np.float64))
    if not np.isfinite(values).all():
        raise ValueError("scores must be finite")
    m, n = int(labels.sum()), int((~labels).sum())
    if min(m, n) < 2:
        raise ValueError(f"DeLong needs two positives and two negatives, got {m} and {n}")
    above, below = structural_components(labels, values)
    aucs = above.mean(axis=1)
    if patients is None:
        sides = np.stack([np.atleast_2d(np.cov(above)) / m, np.atleast_2d(np.cov(below)) / n])
        return AucTest(aucs, sides.sum(axis=0), sides, (m, n))
    count, owner = numbered(patients)
    sums_above, sums_below = (
        np.stack([np.bincount(owner[side], weights=row, minlength=count) for row in part])
        for part, side in ((above - aucs[:, None], labels), (below - aucs[:, None], ~labels))
    )
    with_above = len(set(owner[labels].tolist()))
    with_below = len(set(owner[~labels].tolist()))
    if min(with_above, with_below) < 2:
        raise ValueError("DeLong needs two patients with positives and two with negatives")
    s10 = sums_above @ sums_above.T * with_above / ((with_above - 1) * m * m)
    s01 = sums_below @ sums_below.T * with_below / ((with_below - 1) * n * n)
    cross = sums_above @ sums_below.T * count / ((count - 1) * m * n)
    with_either = with_above, with_below
    return AucTest(aucs, s10 + s01 + cross + cross.T, np.stack([s10, s01]), with_either)


def auc_interval(positive: ArrayLike, negative: ArrayLike) -> tuple[float, float, float]:
    """AUC of scores with and without a finding, and its 95% interval by `delong`, within [0, 1].

    Of fewer than `FEWEST` positives or negatives the interval is all of it.
    """
    above, below = (np.asarray(side, dtype=np.float64) for side in (positive, negative))
    labels, scores = np.repeat([True, False], [above.size, below.size]), np.r_[above, below]
    if min(above.size, below.size) < FEWEST:
        return float(structural_components(labels, scores[None])[0].mean()), 0.0, 1.0
    area, (low, high), _ = delong(labels, scores).estimate([1])
    return area, max(low, 0.0), min(high, 1.0)


def structural_components(labels: NDArray[np.bool_], values: Floats) -> tuple[Floats, Floats]:
    """How often each positive beats the negatives ``[k, m]``, and each negative loses ``[k, n]``.

    Ties count half. With midranks T among all items and among the own class only,
    ``V10 = (T_all - T_positive) / n`` and ``V01 = 1 - (T_all - T_negative) / m``.
    """
    m, n = int(labels.sum()), int((~labels).sum())
    every = np.stack([mean_ranks(row) for row in values])
    among_positive = np.stack([mean_ranks(row[labels]) for row in values])
    among_negative = np.stack([mean_ranks(row[~labels]) for row in values])
    above = (every[:, labels] - among_positive) / n
    below = 1 - (every[:, ~labels] - among_negative) / m
    return above, below


# ------------------------------------------------------------------------------------ seeds


class SeedSummary(NamedTuple):
    """Mean of one metric over trainings that differ in the seed only, their sd (n - 1), t interval.

    The last two are None for one training.
    """

    mean: float
    sd: float | None = None
    interval: Interval | None = None


def seed_summary(values: Sequence[float]) -> SeedSummary:
    """Mean, sd and t interval of ``values``, one for each seed."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return SeedSummary(mean)
    sd = float(np.std(values, ddof=1))
    interval, _ = t_test(mean, sd / math.sqrt(len(values)), len(values) - 1)
    return SeedSummary(mean, sd, interval)


def paired_seeds(
    run: Mapping[int, float], baseline: Mapping[int, float]
) -> tuple[float, Interval, float, str] | None:
    """Difference of two configurations over their seeds: value, t interval, p, and the test.

    Seeds that both have are compared in pairs (``paired t``), since the same seed draws the same
    batches. When fewer than two are shared, Welch's t test of the two groups (``Welch t``). None
    when a group has fewer than two seeds.
    """
    if min(len(run), len(baseline)) < 2:
        return None
    shared = sorted(set(run) & set(baseline))
    if len(shared) >= 2:
        gaps = np.array([run[seed] - baseline[seed] for seed in shared])
        mean, error = float(gaps.mean()), float(gaps.std(ddof=1)) / math.sqrt(gaps.size)
        freedom, name = float(gaps.size - 1), "paired t"
    else:
        sides = [np.array(list(side.values())) for side in (run, baseline)]
        parts = [float(side.var(ddof=1)) / side.size for side in sides]
        mean, error = float(sides[0].mean() - sides[1].mean()), math.sqrt(sum(parts))
        divisor = sum(p * p / (side.size - 1) for p, side in zip(parts, sides, strict=True))
        freedom, name = (sum(parts) ** 2 / divisor if divisor else 1.0), "Welch t"
    return mean, *t_test(mean, error, freedom), name


# ------------------------------------------------------------- patients and seeds together


class CrossedDifference(NamedTuple):
    """A difference of two groups of seeds, tested against patients and seeds together.

    ``difference`` is the mean of the run's seeds minus that of the baseline's; ``interval`` (95%)
    and ``p`` are over other patients and other seeds, with Satterthwaite's degrees of ``freedom``
    (infinite without any variance). ``seed_interval`` and ``p_seeds`` are over the seeds alone, by
    ``seed_test``: ``paired t`` where both groups have the same seeds, else ``Welch t``.
    """

    difference: float
    interval: Interval
    p: float
    seed_interval: Interval
    p_seeds: float
    seed_test: str
    freedom: float


def crossed_difference(
    run: Mapping[int, Replicated], baseline: Mapping[int, Replicated]
) -> CrossedDifference | None:
    """Compare two groups of seeds whose metrics were resampled on the same patients.

    The interval is Student's t on the sum of the variances, with Satterthwaite's degrees of
    freedom; where the seeds' own t interval is wider, it is that one. With two or three seeds the
    sum alone is too sure of itself when seeds make most of the variance, since a variance of two
    or three numbers is often far too small; the seeds' t test is exact there.

    Seeds are compared in pairs where both groups have the same ones; other groups are taken as
    independent, which is safe as long as a shared seed does not make two methods less alike.

    None when a group has fewer than two seeds, when there are fewer than two patients, or when the
    metrics are undefined without one of them or on more than half of the resamples.
    """
    if set(run) != set(baseline):  # numbers that nobody shares: no pairs
        baseline = {-1 - place: value for place, value in enumerate(baseline.values())}
        run = dict(enumerate(run.values()))
    else:
        baseline = {seed: baseline[seed] for seed in run}
    sides = [list(side.values()) for side in (run, baseline)]
    by_seed = [{seed: one.value for seed, one in side.items()} for side in (run, baseline)]
    seeds = paired_seeds(by_seed[0], by_seed[1])
    ours, theirs = (np.stack([one.replicates for one in side]) for side in sides)
    defined = ~(np.isnan(ours).any(axis=0) | np.isnan(theirs).any(axis=0))
    mean_gap = mean_of(sides[0]).minus(mean_of(sides[1]))
    few = mean_gap.rests_on_one or defined.sum() < 2 or 2 * defined.sum() < defined.size
    if seeds is None or few:
        return None
    gap, seed_interval, p_seeds, name = seeds
    ours, theirs = ours[:, defined], theirs[:, defined]
    rests_on = mean_gap.influence
    correction = rests_on.patients / (rests_on.patients - 1)
    of_patients = correction * float((ours.mean(axis=0) - theirs.mean(axis=0)).var())
    parts = [ours, theirs]
    values = [np.array([one.value for one in side]) for side in sides]
    if name == "paired t":
        parts, values = [ours - theirs], [values[0] - values[1]]
    seen = [float(side.var(ddof=1)) / side.size for side in values]
    both = correction * sum(map(_interaction, parts))
    variance = max(sum(seen) - both, 0.0) + of_patients
    if variance <= 0:  # every seed and every resample alike
        p = float(gap == 0)
        return CrossedDifference(gap, (gap, gap), p, seed_interval, p_seeds, name, math.inf)
    squares = sum(v * v / (side.size - 1) for v, side in zip(seen, values, strict=True))
    freedom = variance**2 / (squares + of_patients**2 / rests_on.freedom)
    (low, high), p = t_test(gap, math.sqrt(variance), freedom)
    interval = min(low, seed_interval[0]), max(high, seed_interval[1])
    return CrossedDifference(gap, interval, max(p, p_seeds), seed_interval, p_seeds, name, freedom)


class Comparison(NamedTuple):
    """Two groups of trainings in one metric: the one way in which differences are tested.

    ``patients`` is of the groups' means, over the patients alone, ``both`` over patients and seeds
    (None where a group has one seed or it cannot be computed), ``p`` and ``interval`` over all that
    is known to vary.
    """

    patients: Difference
    both: CrossedDifference | None
    p: float | None
    interval: Interval | None


def compared(run: Mapping[int, Replicated], baseline: Mapping[int, Replicated]) -> Comparison:
    """Compare two groups of trainings, by their seeds, that were resampled on the same patients."""
    ours, theirs = (mean_of(list(side.values())) for side in (run, baseline))
    over_patients, both = difference(ours, theirs), crossed_difference(run, baseline)
    widest = over_patients if both is None else both
    return Comparison(over_patients, both, widest.p, None if ours.biased else widest.interval)


def _interaction(resampled: Floats) -> float:
    """Variance of the mean over the seeds from each seed's own patients: ``e``, around the mean."""
    seeds = len(resampled)
    around = resampled - resampled.mean(axis=0)
    return float(around.var(axis=1).sum()) / (seeds * (seeds - 1))


# ----------------------------------------------------------------------- many comparisons


@overload
def holm(p_values: Sequence[float]) -> list[float]: ...
@overload
def holm(p_values: Sequence[float | None]) -> list[float | None]: ...
def holm(p_values: Sequence[float | None]) -> Sequence[float | None]:
    """Holm's (1979) step-down adjusted p-values of one family, in the order given.

    None and NaN, of what was not tested, stay None and are not counted.

    The i-th smallest of m is multiplied by ``m - i + 1``, made monotone and cut at 1: rejecting
    those at most alpha keeps the chance of any false rejection at alpha, whatever their dependence.
    """
    p = np.asarray(p_values, dtype=np.float64)  # None is NaN, and sorted behind all others
    tested = int((~np.isnan(p)).sum())
    order = np.argsort(p, kind="stable")[:tested]
    stepped = np.maximum.accumulate(p[order] * np.arange(tested, 0, -1))
    adjusted: list[float | None] = [None] * p.size
    for place, value in zip(order.tolist(), np.minimum(stepped, 1).tolist(), strict=True):
        adjusted[place] = value
    return adjusted


def average_ranks(values: ArrayLike, lower_is_better: Sequence[bool]) -> Floats:
    """Mean over metrics of each method's rank, 1 for the best; ties share their mean rank."""
    table = np.asarray(values, dtype=np.float64)
    signs = np.where(np.asarray(lower_is_better, dtype=bool), 1.0, -1.0)
    ranks = np.stack([mean_ranks(column) for column in (table * signs).T], axis=1)
    return np.asarray(ranks.mean(axis=1))
