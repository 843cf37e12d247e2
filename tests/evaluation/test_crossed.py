"""Groups of seeds on resampled patients: level and coverage in simulation, and limit cases."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from medclip_debias.evaluation.bootstrap import Replicated
from medclip_debias.evaluation.statistics import crossed_difference

PATIENTS, RESAMPLES, TRIALS = 40, 150, 500


def groups(values, counts, shared=True):
    """Figures of the seeds of two groups, the means of ``values [2, seeds, patients]``.

    With ``counts [B, patients]`` how often each patient is drawn, a mean's replicates are one
    matrix product.
    """
    drawn = values @ counts.T / counts.sum(axis=1)
    without = (values.sum(axis=-1, keepdims=True) - values) / (PATIENTS - 1)
    sides = [
        {
            seed: Replicated(*own, PATIENTS)
            for seed, own in enumerate(zip(means.tolist(), drawn[side], without[side], strict=True))
        }
        for side, means in enumerate(values.mean(axis=-1))
    ]
    if not shared:
        sides[1] = {seed + 100: value for seed, value in sides[1].items()}
    return sides


def draws(rng):
    return rng.multinomial(PATIENTS, np.full(PATIENTS, 1 / PATIENTS), size=RESAMPLES).astype(float)


def trial(rng, seeds, of_seeds, shared, truth=0.0):
    """Two groups that differ by ``truth``: patients, seeds and both together make the chance.

    The variance of the mean difference is 2 for patients, ``2 of_seeds`` for seeds, 0.2 for both.
    """
    patient = rng.normal(size=(2, 1, PATIENTS)) * np.sqrt(PATIENTS)
    seed = rng.normal(size=(2, seeds, 1)) * np.sqrt(seeds * of_seeds)
    if shared:  # what a seed does to both methods alike does not count
        seed += 3 * rng.normal(size=(1, seeds, 1))
    both = rng.normal(size=(2, seeds, PATIENTS)) * np.sqrt(0.1 * seeds * PATIENTS)
    values = patient + seed + both + 5 * rng.normal(size=PATIENTS)
    values[0] += truth
    return values


def bound(share):
    """2.65 standard deviations of a share of the trials, and Satterthwaite's own."""
    return 2.65 * np.sqrt(share * (1 - share) / TRIALS) + 0.006


@pytest.mark.parametrize(
    ("seeds", "of_seeds", "shared"),
    [
        (3, 1.0, True),
        (10, 1.0, True),
        (5, 5.0, True),
        (10, 0.0, True),
        (3, 1.0, False),
    ],
)
def test_level_and_coverage_hold_for_few_and_for_many_seeds(seeds, of_seeds, shared):
    """Equal methods are called different, or the truth is missed, 5 times in 100."""
    rng = np.random.default_rng([seeds, int(10 * of_seeds), shared])
    counts = draws(rng)
    wrong = 0
    for number in range(TRIALS):
        truth = 7.0 if number % 2 else 0.0
        sides = groups(trial(rng, seeds, of_seeds, shared, truth), counts, shared)
        found = crossed_difference(*sides)
        missed = not found.interval[0] <= truth <= found.interval[1]
        wrong += missed if truth else found.p <= 0.05
    assert wrong / TRIALS <= 0.05 + bound(0.05)
    if seeds > 3:  # nor is power given away
        assert wrong / TRIALS >= 0.05 - bound(0.05)


def test_p_is_at_most_5_percent_just_where_the_interval_leaves_0():
    rng = np.random.default_rng(3)
    counts = draws(rng)
    for number in range(100):
        values = trial(rng, 3 + number % 4, 1.0, number % 2 == 0, truth=4.0)
        found = crossed_difference(*groups(values, counts, number % 2 == 0))
        low, high = found.interval
        assert (found.p <= 0.05) == (low > 0 or high < 0)
        assert (low + high) / 2 == pytest.approx(found.difference)
        assert found.p >= found.p_seeds


def test_the_variance_is_that_of_the_two_way_analysis_of_variance():
    """Independent of the bootstrap: mean squares of seeds, patients and their interaction."""
    rng = np.random.default_rng(5)
    values = trial(rng, 6, 1.0, True)
    counts = rng.multinomial(PATIENTS, np.full(PATIENTS, 1 / PATIENTS), size=60_000).astype(float)
    found = crossed_difference(*groups(values, counts))
    gaps = values[0] - values[1]
    by_seed, by_patient, mean = gaps.mean(axis=1), gaps.mean(axis=0), gaps.mean()
    rest = gaps - by_seed[:, None] - by_patient + mean
    both = (rest**2).sum() / 5 / (PATIENTS - 1) / gaps.size
    parts = by_seed.var(ddof=1) / 6, by_patient.var(ddof=1) / PATIENTS
    variance = parts[0] + parts[1] - both
    around = by_patient - mean  # the fourth moment says how sure their variance is
    own = 2 / ((around**4).sum() / (around**2).sum() ** 2 - 1 / PATIENTS)
    own = min(own, PATIENTS - 1)
    freedom = variance**2 / (parts[0] ** 2 / 5 + parts[1] ** 2 / own)
    assert found.freedom == pytest.approx(freedom, rel=0.03)
    reach = stats.t.ppf(0.975, freedom) * np.sqrt(variance)
    assert found.interval[1] - found.difference == pytest.approx(reach, rel=0.01)


def test_when_only_seeds_vary_it_is_their_t_test_and_when_only_patients_do_it_is_theirs():
    rng = np.random.default_rng(8)
    counts = draws(rng)
    values = np.broadcast_to(rng.normal(size=(2, 4, 1)), (2, 4, PATIENTS))
    one, two = groups(values, counts)
    found = crossed_difference(one, two)
    expected = stats.ttest_rel(values[0, :, 0], values[1, :, 0])
    assert found.p == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx(tuple(expected.confidence_interval()))

    values = np.broadcast_to(rng.normal(size=(2, 1, PATIENTS)), (2, 4, PATIENTS))
    found = crossed_difference(*groups(values, counts))
    gaps = values[0, 0] - values[1, 0]
    assert 20 < found.freedom <= PATIENTS - 1
    width = 2 * stats.t.ppf(0.975, found.freedom) * stats.sem(gaps)
    assert found.interval[1] - found.interval[0] == pytest.approx(width, rel=0.2)  # of B draws


def test_seeds_that_only_some_runs_share_are_not_paired():
    rng = np.random.default_rng(2)
    values = trial(rng, 3, 1.0, False)
    one, two = groups(values, draws(rng))
    moved = dict(zip([0, 1, 7], two.values(), strict=True))
    found = crossed_difference(one, moved)
    assert found.seed_test == "Welch t"
    assert found.difference == pytest.approx(values[0].mean() - values[1].mean())
    # The order in which runs were named does not matter.
    turned = dict(reversed(list(two.items())))
    assert crossed_difference(one, turned) == crossed_difference(one, two)


def test_equal_groups_are_no_difference_and_what_cannot_be_tested_is_none():
    rng = np.random.default_rng(1)
    one, _ = groups(trial(rng, 3, 1.0, True), draws(rng))
    same = crossed_difference(one, one)
    assert (same.difference, same.interval, same.p) == (0, (0, 0), 1)
    assert crossed_difference({0: one[0]}, one) is None
    nothing, none = np.full(RESAMPLES, np.nan), np.empty(0)
    undefined = {s: Replicated(v.value, nothing, v.without, PATIENTS) for s, v in one.items()}
    assert crossed_difference(one, undefined) is None
    empty = {s: Replicated(v.value, none, none, PATIENTS) for s, v in one.items()}
    assert crossed_difference(empty, empty) is None
