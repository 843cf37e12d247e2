"""Two groups of trainings on one sample of patients: both kinds of chance in one test.

A difference between groups of seeds would come out otherwise with other patients, and with other
seeds. Write the difference of seed s on the patients P as ``d + a_s + b_P + e_sP``; the variance
of its mean over S seeds is the sum of the three parts. Over the seeds one sees ``a + e``, over
resampled patients ``b + e``; ``e`` stands in both, and is taken out once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from medclip_debias.evaluation.bootstrap import Floats, Interval
from medclip_debias.evaluation.statistics import (
    Difference,
    Replicated,
    difference,
    mean_of,
    paired_seeds,
)


@dataclass(frozen=True)
class CrossedDifference:
    """A difference of two groups of seeds, tested against patients and seeds together.

    Attributes:
        difference: mean of the run's seeds minus mean of the baseline's.
        interval: of it, over other patients and other seeds.
        p: two-sided, of no difference.
        seed_interval: Student's t interval over the seeds alone.
        p_seeds: its p.
        seed_test: ``paired t`` where both groups have the same seeds, else ``Welch t``.
        freedom: Satterthwaite's degrees of freedom of the sum; infinite without any variance.
    """

    difference: float
    interval: Interval
    p: float
    seed_interval: Interval
    p_seeds: float
    seed_test: str
    freedom: float


def crossed_difference(
    run: Mapping[int, Replicated], baseline: Mapping[int, Replicated], level: float = 0.95
) -> CrossedDifference | None:
    """Compare two groups of seeds whose metrics were resampled on the same patients.

    The interval is Student's t on the sum of the variances, with Satterthwaite's degrees of
    freedom; where the seeds' own t interval is wider, it is that one. With two or three seeds the
    sum alone is too sure of itself when seeds make most of the variance, since a variance of two
    or three numbers is often far too small; the seeds' t test is exact there.

    Seeds are compared in pairs where both groups have the same ones; other groups are taken as
    independent, which is safe as long as a shared seed does not make two methods less alike.

    Returns:
        None when a group has fewer than two seeds, when there are fewer than two patients, or
        when the metrics are undefined on more than half of the resamples.
    """
    from scipy.special import stdtr, stdtrit

    if set(run) != set(baseline):  # numbers that nobody shares: no pairs
        baseline = {-1 - place: value for place, value in enumerate(baseline.values())}
        run = dict(enumerate(run.values()))
    seeds = paired_seeds(_values(run), _values(baseline), level)
    resampled = _stacked(run, baseline)
    if seeds is None or resampled is None:
        return None
    gap, seed_interval, p_seeds, name = seeds
    ours, theirs = resampled
    rests_on = mean_of(list(run.values())).minus(mean_of(list(baseline.values()))).influence
    correction = rests_on.patients / (rests_on.patients - 1)
    of_patients = correction * float((ours.mean(axis=0) - theirs.mean(axis=0)).var())
    parts = [ours - theirs] if name == "paired t" else [ours, theirs]
    values = [np.array([one.value for one in side.values()]) for side in (run, baseline)]
    if name == "paired t":
        values = [np.array([run[s].value - baseline[s].value for s in run])]
    seen = [float(side.var(ddof=1)) / side.size for side in values]
    both = correction * sum(map(_interaction, parts))
    of_seeds = max(sum(seen) - both, 0.0)
    variance = of_seeds + of_patients
    squares = sum(v * v / (side.size - 1) for v, side in zip(seen, values, strict=True))
    squares += of_patients**2 / rests_on.freedom
    if variance <= 0:  # every seed and every resample alike
        p = float(gap == 0)
        return CrossedDifference(gap, (gap, gap), p, seed_interval, p_seeds, name, math.inf)
    freedom, error = variance**2 / squares, math.sqrt(variance)
    reach = float(stdtrit(freedom, (1 + level) / 2)) * error
    reach = max(reach, gap - seed_interval[0])
    p = max(float(2 * stdtr(freedom, -abs(gap) / error)), p_seeds)
    interval = (gap - reach, gap + reach)
    return CrossedDifference(gap, interval, p, seed_interval, p_seeds, name, freedom)


@dataclass(frozen=True)
class Comparison:
    """Two groups of trainings in one metric: the one way in which differences are tested.

    Attributes:
        patients: of the groups' means, over the patients alone.
        both: over patients and seeds; None where a group has one seed or neither can be computed.
    """

    patients: Difference
    both: CrossedDifference | None

    @property
    def p(self) -> float | None:
        """Two-sided, over all that is known to vary; None where nothing can be computed."""
        return self.patients.p if self.both is None else self.both.p

    @property
    def interval(self) -> Interval | None:
        """95%, of the same."""
        return self.patients.interval if self.both is None else self.both.interval


def compared(run: Mapping[int, Replicated], baseline: Mapping[int, Replicated]) -> Comparison:
    """Compare two groups of trainings, by their seeds, that were resampled on the same patients."""
    ours, theirs = (mean_of(list(side.values())) for side in (run, baseline))
    return Comparison(difference(ours, theirs), crossed_difference(run, baseline))


def _values(group: Mapping[int, Replicated]) -> dict[int, float]:
    return {seed: one.value for seed, one in group.items()}


def _stacked(
    run: Mapping[int, Replicated], baseline: Mapping[int, Replicated]
) -> tuple[Floats, Floats] | None:
    """Replicates ``[seeds, B]`` of both groups where all are defined; pairs in the same order."""
    order = list(run) if set(run) == set(baseline) else list(baseline)
    ours = np.stack([one.replicates for one in run.values()])
    theirs = np.stack([baseline[seed].replicates for seed in order])
    defined = ~(np.isnan(ours).any(axis=0) | np.isnan(theirs).any(axis=0))
    if defined.sum() < 2 or 2 * defined.sum() < defined.size:
        return None
    return ours[:, defined], theirs[:, defined]


def _interaction(resampled: Floats) -> float:
    """Variance of the mean over the seeds that comes from each seed's own patients: ``e``.

    Around the mean of the seeds, in each resample, ``e`` is all that varies over the resamples.
    """
    seeds = len(resampled)
    around = resampled - resampled.mean(axis=0)
    return float(around.var(axis=1).sum()) / (seeds * (seeds - 1))
