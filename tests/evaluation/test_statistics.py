"""Tests of differences against brute force, closed forms, scipy, and simulated truth."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from medclip_debias.evaluation.bootstrap import replicates, weighted_auc, weighted_mean
from medclip_debias.evaluation.statistics import (
    average_ranks,
    delong,
    difference,
    holm,
    paired_seeds,
    seed_summary,
    structural_components,
)


def brute_components(labels, scores):
    """V10 and V01 of DeLong et al. from their definition, one pair at a time."""
    positive, negative = scores[labels], scores[~labels]

    def psi(x, y):
        return 1.0 if x > y else 0.5 if x == y else 0.0

    v10 = [math.fsum(psi(x, y) for y in negative) / len(negative) for x in positive]
    v01 = [math.fsum(psi(x, y) for x in positive) / len(positive) for y in negative]
    return np.array(v10), np.array(v01)


# ---------------------------------------------------------------------------------- DeLong


@pytest.mark.parametrize("seed", range(6))
def test_midranks_give_the_components_of_every_pair(seed):
    rng = np.random.default_rng(seed)
    labels = rng.random(41) < 0.4
    scores = rng.integers(0, 9, (3, 41)) / 4.0  # with many ties
    above, below = structural_components(labels, scores)
    brute = [brute_components(labels, row) for row in scores]
    np.testing.assert_allclose(above, [pair[0] for pair in brute], atol=1e-12)
    np.testing.assert_allclose(below, [pair[1] for pair in brute], atol=1e-12)
    found = delong(labels, scores)
    assert found.aucs == pytest.approx([roc_auc_score(labels, row) for row in scores])
    m, n = labels.sum(), (~labels).sum()
    for r, s in itertools.product(range(3), repeat=2):
        expected = 0.0
        for side, count in ((0, m), (1, n)):
            a, b = brute[r][side], brute[s][side]
            total = sum((x - a.mean()) * (y - b.mean()) for x, y in zip(a, b, strict=True))
            expected += total / (count - 1) / count
        assert found.covariance[r, s] == pytest.approx(expected, abs=1e-12)


def clustered(rng, patients=40, images=4):
    """Scores that share a patient's effect, labels that a patient mostly shares."""
    owner = np.repeat(np.arange(patients), images)
    labels = rng.random(owner.size) < np.where(rng.random(patients) < 0.5, 0.1, 0.9)[owner]
    common = rng.normal(size=patients)[owner] + labels
    return owner.astype(str), labels, common + 0.5 * rng.normal(size=owner.size)


def test_images_of_one_patient_widen_the_interval_as_repeated_samples_do():
    rng = np.random.default_rng(5)
    aucs, clusters, naive = [], [], []
    for _ in range(300):
        owner, labels, scores = clustered(rng)
        found = delong(labels, scores, owner)
        aucs.append(found.aucs[0])
        clusters.append(found.covariance[0, 0])
        naive.append(delong(labels, scores).covariance[0, 0])
    truth = np.var(aucs, ddof=1)
    assert np.mean(clusters) == pytest.approx(truth, rel=0.3)
    assert np.mean(naive) < 0.6 * truth


def test_delong_on_degenerate_scores():
    labels = np.array([True, True, False, False])
    perfect = np.array([4.0, 3, 2, 1])
    same = delong(labels, [perfect, perfect * 2])
    assert same.difference() == (0, (0, 0), 1)
    opposite = delong(labels, [perfect, -perfect]).difference()
    assert opposite[0] == 1
    assert opposite[2] == 0
    assert delong(labels, np.ones(4)).aucs[0] == 0.5
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


def covered(rng, images, statistic, truth, trials, resamples):
    """How often the interval of a difference holds its true value."""
    hits = 0
    for trial in range(trials):
        patients, statistics = statistic(rng, images)
        found = paired(*statistics, patients, resamples=resamples, seed=trial)["d"]
        hits += found.interval[0] <= truth <= found.interval[1]
    return hits / trials


def mean_pair(rng, images):
    owner = np.repeat(np.arange(50), images)
    common = rng.normal(size=50)[owner]
    own = rng.normal(size=50)[owner] * 0.7  # the difference, too, depends on the patient
    a = common + own + 0.3 + 0.4 * rng.normal(size=owner.size)
    b = common + 0.4 * rng.normal(size=owner.size)
    runs = (lambda w: {"d": weighted_mean(a, w)}, lambda w: {"d": weighted_mean(b, w)})
    return owner.astype(str).tolist(), runs


def auc_pair(rng, images):
    owner = np.repeat(np.arange(60), images)
    labels = rng.random(owner.size) < 0.5
    patient = 0.7 * rng.normal(size=60)[owner]
    a = patient + labels * np.sqrt(2) + rng.normal(size=owner.size) * np.sqrt(0.51)
    b = patient + labels * np.sqrt(2) / 2 + rng.normal(size=owner.size) * np.sqrt(0.51)
    runs = (
        lambda w: {"d": weighted_auc(labels, a, w)},
        lambda w: {"d": weighted_auc(labels, b, w)},
    )
    return owner.astype(str).tolist(), runs


# AUCs of unit variance in each class: Phi(shift / sqrt 2).
@pytest.mark.parametrize(
    ("pair", "images", "truth"),
    [
        (mean_pair, 1, 0.3),
        (mean_pair, 4, 0.3),
        (auc_pair, 4, stats.norm.cdf(1.0) - stats.norm.cdf(0.5)),
    ],
)
def test_intervals_of_differences_hold_the_truth_95_times_in_100(pair, images, truth):
    rng = np.random.default_rng(images)
    assert 0.90 <= covered(rng, images, pair, truth, 200, 250) <= 0.99


def test_both_runs_see_the_same_patients():
    rng = np.random.default_rng(0)
    hard = 10 * rng.normal(size=40)  # differs between patients far more than between the runs
    found = paired(
        lambda w: {"d": weighted_mean(hard + 0.5, w), "only": weighted_mean(hard, w)},
        lambda w: {"d": weighted_mean(hard, w)},
        [str(i) for i in range(40)],
        resamples=300,
    )
    assert list(found) == ["d"]
    assert found["d"].difference == pytest.approx(0.5)
    assert found["d"].interval == pytest.approx((0.5, 0.5))
    assert found["d"].p == 2.0**-39  # as if the signs of 40 patients were tossed


def test_two_patients_show_nothing_even_when_both_agree_exactly():
    found = paired(
        lambda w: {"d": weighted_mean([1.0, 2.0], w)},
        lambda w: {"d": weighted_mean([0.5, 1.5], w)},
        ["a", "b"],
        resamples=50,
    )["d"]
    assert found.interval == pytest.approx((0.5, 0.5))
    assert found.p == 0.5


def test_without_resamples_or_with_one_patient_there_is_no_interval():
    def statistics(w):
        return {"d": weighted_mean(np.arange(4), w)}

    for patients, resamples in ((list("abcd"), 0), (["a"] * 4, 100)):
        found = paired(statistics, statistics, patients, resamples=resamples)["d"]
        assert found == (0, None, None)


@pytest.mark.parametrize("patients", [8, 40, 400])
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


def test_seeds_are_summarised_as_scipy_does():
    values = [0.80, 0.84, 0.79, 0.83]
    found = seed_summary(values)
    assert found.sd == pytest.approx(np.std(values, ddof=1))
    assert found.interval == pytest.approx(
        stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    )
    assert seed_summary([0.5]).interval is None


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
