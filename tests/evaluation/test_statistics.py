"""Tests of differences against brute force, closed forms, scipy, and simulated truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from medclip_debias.evaluation.bootstrap import Replicated, replicates, weighted_auc, weighted_mean
from medclip_debias.evaluation.statistics import (
    average_ranks,
    crossed_difference,
    delong,
    difference,
    holm,
    paired_seeds,
    structural_components,
)

# ---------------------------------------------------------------------------------- DeLong


@pytest.mark.parametrize("seed", range(2))
def test_midranks_give_the_components_of_every_pair(seed):
    """V10 and V01 of DeLong et al. from their definition."""
    rng = np.random.default_rng(seed)
    labels = rng.random(41) < 0.4
    scores = rng.integers(0, 9, (3, 41)) / 4.0  # with many ties
    yes, no = scores[:, labels, None], scores[:, None, ~labels]
    wins = (yes > no) + 0.5 * (yes == no)
    v10, v01 = wins.mean(axis=2), wins.mean(axis=1)
    np.testing.assert_allclose(structural_components(labels, scores)[0], v10, atol=1e-12)
    np.testing.assert_allclose(structural_components(labels, scores)[1], v01, atol=1e-12)
    found = delong(labels, scores)
    assert found.aucs == pytest.approx([roc_auc_score(labels, row) for row in scores])
    covariance = np.cov(v10) / labels.sum() + np.cov(v01) / (~labels).sum()
    np.testing.assert_allclose(found.covariance, covariance, atol=1e-12)


def clustered(rng, patients=40, images=4):
    """Scores that share a patient's effect, labels that a patient mostly shares."""
    owner = np.repeat(np.arange(patients), images)
    labels = rng.random(owner.size) < np.where(rng.random(patients) < 0.5, 0.1, 0.9)[owner]
    common = rng.normal(size=patients)[owner] + labels
    return owner.astype(str), labels, common + 0.5 * rng.normal(size=owner.size)


def test_images_of_one_patient_widen_the_interval_as_repeated_samples_do():
    rng = np.random.default_rng(5)
    aucs, clusters, naive = [], [], []
    for _ in range(150):
        owner, labels, scores = clustered(rng)
        found = delong(labels, scores, owner)
        aucs.append(found.aucs[0])
        clusters.append(found.covariance[0, 0])
        naive.append(delong(labels, scores).covariance[0, 0])
    truth = np.var(aucs, ddof=1)
    assert np.mean(clusters) == pytest.approx(truth, rel=0.3)
    assert np.mean(naive) < 0.6 * truth


@pytest.mark.parametrize("seed", range(20))
def test_the_interval_of_an_auc_holds_a_half_where_brunner_and_munzel_see_no_difference(seed):
    rng = np.random.default_rng(seed)
    labels = np.arange(30) < 5
    scores = rng.integers(0, 12, 30) + 4 * labels  # with ties
    _, (low, high), _ = delong(labels, scores).estimate([1])
    expected = stats.brunnermunzel(scores[labels], scores[~labels])
    assert (low <= 0.5 <= high) == (expected.pvalue >= 0.05)


@pytest.mark.parametrize(("positives", "most"), [(2, 0.0), (3, 0.0), (8, 0.09)])
def test_two_equal_models_seldom_differ_however_few_the_positives(positives, most):
    """With a normal distribution they do in 19, 13 and 8 of 100 sets."""
    rng = np.random.default_rng(0)
    labels, wrong = np.arange(80) < positives, 0
    for _ in range(150):
        scores = rng.normal(size=80) + labels + rng.normal(size=(2, 80))
        wrong += delong(labels, scores).difference()[2] <= 0.05
    assert wrong / 150 <= most


def test_delong_on_degenerate_scores():
    labels = np.array([True, True, False, False])
    perfect = np.array([4.0, 3, 2, 1])
    same = delong(labels, [perfect, perfect * 2])
    assert same.difference() == (0, (0, 0), 1)
    assert delong(labels, [perfect, -perfect]).difference()[::2] == (1, 0.5)
    with pytest.raises(ValueError, match="got 1 and 3"):
        delong([True, False, False, False], perfect)
    with pytest.raises(ValueError, match="finite"):
        delong(labels, [1, 2, np.nan, 3])
    with pytest.raises(ValueError, match="two patients"):
        delong(labels, perfect, ["a", "a", "b", "c"])


# -------------------------------------------------------------------------- the bootstrap


def paired(run, baseline, patients, *, resamples, seed=0):
    """The difference of each statistic that two runs share."""
    both = {"run": run, "baseline": baseline}
    found = replicates(both, patients, resamples=resamples, seed=seed)
    mine, other = found["run"], found["baseline"]
    return {name: difference(mine[name], other[name]) for name in mine if name in other}


def auc_pair(rng):
    """AUCs of two models on 4 images of each of 60 patients, of unit variance in each class."""
    owner = np.repeat(np.arange(60), 4)
    labels = rng.random(owner.size) < 0.5
    patient = 0.7 * rng.normal(size=60)[owner]
    scores = [
        patient + labels * shift + rng.normal(size=owner.size) * np.sqrt(0.51)
        for shift in (np.sqrt(2), np.sqrt(2) / 2)
    ]
    runs = (lambda w, s=s: {"d": weighted_auc(labels, s, w)} for s in scores)
    return *runs, owner.astype(str).tolist()


def test_intervals_of_differences_hold_the_truth_95_times_in_100():
    truth = stats.norm.cdf(1.0) - stats.norm.cdf(0.5)  # Phi(shift / sqrt 2)
    rng = np.random.default_rng(4)
    hits = 0
    for trial in range(150):
        found = paired(*auc_pair(rng), resamples=200, seed=trial)["d"]
        hits += found.interval[0] <= truth <= found.interval[1]
    assert 0.90 <= hits / 150 <= 0.99


def test_both_runs_see_the_same_patients_and_one_patient_shows_nothing():
    hard = 10 * np.random.default_rng(0).normal(size=40)  # patients differ more than runs do

    def found(patients):
        runs = (lambda w, m=more: {"d": weighted_mean(hard + m, w)} for more in (0.5, 0))
        return paired(*runs, patients, resamples=300)["d"]

    apart = found([str(i) for i in range(40)])
    assert apart.difference == pytest.approx(0.5)
    assert apart.interval == pytest.approx((0.5, 0.5))
    assert apart.p == 2.0**-39  # as if the signs of 40 patients were tossed
    assert found(["a"] * 40)[1:] == (None, None)


@pytest.mark.parametrize("patients", [8, 400])
def test_a_difference_of_means_is_the_paired_t_test(patients):
    """But for the noise of the resamples, where the fourth moment is a normal one or lower."""
    gaps = stats.norm.ppf((np.arange(patients) + 0.5) / patients)
    gaps += 2.2 * stats.sem(gaps)
    found = paired(
        lambda w: {"d": weighted_mean(gaps, w)},
        lambda w: {"d": weighted_mean(gaps * 0, w)},
        [str(i) for i in range(patients)],
        resamples=4000,
    )["d"]
    expected = stats.ttest_1samp(gaps, 0)
    assert found.p == pytest.approx(expected.pvalue, rel=0.2)
    low, high = expected.confidence_interval()
    assert found.interval == pytest.approx((low, high), abs=0.03 * (high - low))


# ------------------------------------------------------------------ seeds and many metrics


def test_shared_seeds_are_paired_and_others_are_not():
    a, b = {0: 0.80, 1: 0.90, 2: 0.85}, {0: 0.78, 1: 0.89, 2: 0.82}
    difference, interval, p, test = paired_seeds(a, b)
    gaps = [a[k] - b[k] for k in a]
    assert test == "paired t"
    assert difference == pytest.approx(np.mean(gaps))
    assert p == pytest.approx(stats.ttest_rel(list(a.values()), list(b.values())).pvalue)
    low, high = stats.t.interval(0.95, 2, loc=np.mean(gaps), scale=stats.sem(gaps))
    assert interval == pytest.approx((low, high))
    others = {seed + 7: value for seed, value in b.items()}
    _, _, p, test = paired_seeds(a, others)
    assert test == "Welch t"
    expected = stats.ttest_ind(list(a.values()), list(b.values()), equal_var=False)
    assert p == pytest.approx(expected.pvalue)
    assert paired_seeds({0: 1.0}, b) is None
    assert paired_seeds(a, a)[2] == 1


@pytest.mark.parametrize(
    ("p", "adjusted"),
    [
        # Sorted: .005 x 4, .01 x 3, .03 x 2, .04 x 1 raised to .06.
        ([0.01, 0.04, 0.03, 0.005], [0.03, 0.06, 0.06, 0.02]),
        ([0.9, 0.8], [1, 1]),
        ([], []),
        # What was not tested is no part of the family.
        ([None, 0.04, float("nan"), 0.01], [None, 0.04, None, 0.02]),
    ],
)
def test_holm_on_worked_examples(p, adjusted):
    assert holm(p) == pytest.approx(adjusted)


def test_ranks_are_averaged_over_metrics():
    values = [[0.9, 10], [0.8, 20], [0.9, 30]]  # second metric: a median rank, lower is better
    assert average_ranks(values, [False, True]).tolist() == [1.25, 2.5, 2.25]


# ---------------------------------------------------------------------- seeds on resampled patients


PATIENTS, RESAMPLES, TRIALS = 40, 150, 300


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
        (3, 1.0, False),
        (5, 5.0, True),
        (10, 0.0, True),
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
        assert (found.p <= 0.05) == (found.interval[0] > 0 or found.interval[1] < 0)
        missed = not found.interval[0] <= truth <= found.interval[1]
        wrong += missed if truth else found.p <= 0.05
    assert wrong / TRIALS <= 0.05 + bound(0.05)
    if seeds > 3:  # nor is power given away
        assert wrong / TRIALS >= 0.05 - bound(0.05)


def test_the_variance_is_that_of_the_two_way_analysis_of_variance():
    """Independent of the bootstrap: mean squares of seeds, patients and their interaction."""
    rng = np.random.default_rng(5)
    values = trial(rng, 6, 1.0, True)
    counts = rng.multinomial(PATIENTS, np.full(PATIENTS, 1 / PATIENTS), size=20_000).astype(float)
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
