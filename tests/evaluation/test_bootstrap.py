"""The weighted forms against copied items, and the coverage of the intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from medclip_debias.evaluation.bootstrap import (
    Influence,
    expanded_interval,
    influence,
    jackknife_weights,
    percentile_interval,
    replicates,
    resample_weights,
    weighted_auc,
    weighted_mean,
    weighted_median,
)
from medclip_debias.evaluation.metrics import auc, weighted_ece
from medclip_debias.evaluation.statistics import compared


@pytest.mark.parametrize("seed", range(2))
def test_weighted_statistics_equal_those_of_repeated_items(seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 12, 30) / 4  # with ties
    positive = rng.random(30) < 0.4
    weights = rng.integers(0, 4, (8, 30)).astype(float)
    for row in range(8):
        repeat = weights[row].astype(int)
        copied, labels = np.repeat(values, repeat), np.repeat(positive, repeat)
        assert weighted_mean(values, weights)[row] == pytest.approx(copied.mean())
        assert weighted_median(values, weights)[row] == pytest.approx(np.median(copied))
        found = weighted_auc(positive, values, weights)[row]
        assert found == pytest.approx(auc(labels, copied))
    nothing = np.zeros((1, 30))  # is undefined, and not zero
    assert math.isnan(weighted_mean(values, nothing)[0])
    assert math.isnan(weighted_median(values, nothing)[0])
    assert math.isnan(weighted_auc(positive, values, 1.0 * positive[None])[0])


def test_items_of_a_patient_are_drawn_together():
    patients = ["a", "b", "a", "c", "b", "a"]
    for weights in resample_weights(patients, 50, seed=1, block=20):
        assert (weights[:, 0] == weights[:, 2]).all()
        assert (weights[:, 0] == weights[:, 5]).all()
        assert (weights[:, 1] == weights[:, 4]).all()
        assert (weights[:, 0] + weights[:, 1] + weights[:, 3] == 3).all()


def test_patients_or_groups_of_them_are_left_out_in_turn():
    every = np.concatenate(list(jackknife_weights(["b", "a", "b", "c"], block=2)))
    assert every.tolist() == [[1, 0, 1, 1], [0, 1, 0, 1], [1, 1, 1, 0]]
    grouped = np.concatenate(list(jackknife_weights([str(i) for i in range(7)], groups=3)))
    assert (grouped == 0).sum(axis=0).tolist() == [1] * 7
    assert (grouped == 0).sum(axis=1).tolist() == [3, 2, 2]


def interval(values, patients, resamples, seed=0):
    runs = {"": lambda w: {"mean": weighted_mean(values, w)}}
    return replicates(runs, patients, resamples=resamples, seed=seed)[""]["mean"].interval


def test_equal_seeds_give_equal_intervals_whatever_the_block():
    values = np.random.default_rng(0).normal(size=40)
    patients = [str(i // 2) for i in range(40)]
    assert interval(values, patients, 300, 3) == interval(values, patients, 300, 3)
    assert interval(values, patients, 300, 3) != interval(values, patients, 300, 4)
    whole = np.concatenate(list(resample_weights(patients, 150, 3, block=150)))
    blocks = np.concatenate(list(resample_weights(patients, 150, 3, block=40)))
    np.testing.assert_array_equal(whole, blocks)


def test_95_percent_intervals_hold_the_truth_95_times_in_100_for_few_patients_too():
    """Two items a patient, fully dependent; a plain percentile interval holds 90% of 12."""
    rng = np.random.default_rng(12)
    trials, used, plain = 400, 0, 0
    names = [str(i // 2) for i in range(24)]
    resamples = np.concatenate(list(resample_weights(names, 400, 0)))
    without = np.concatenate(list(jackknife_weights(names)))
    for _ in range(trials):
        values = np.repeat(rng.normal(size=12), 2)
        drawn = weighted_mean(values, resamples)
        low, high = expanded_interval(drawn, influence(weighted_mean(values, without), 12))
        used += low <= 0 <= high
        low, high = percentile_interval(drawn)
        plain += low <= 0 <= high
    room = 3 * math.sqrt(0.05 * 0.95 / trials)
    assert used / trials == pytest.approx(0.95, abs=room)
    assert plain / trials < 0.95 - room


def test_few_patients_behind_a_statistic_are_seen_among_many():
    names = [str(i) for i in range(1000)]
    without = np.concatenate(list(jackknife_weights(names)))
    values, few = np.random.default_rng(0).normal(size=1000), np.arange(1000) < 6
    some = influence(weighted_mean(values[few], without[:, few]), 1000)
    assert (some.patients, some.freedom <= 5) == (6, True)
    whole = influence(weighted_mean(values, without), 1000)
    assert whole.patients == 1000
    assert whole.freedom > 100
    scores = values + 2 * few
    rare = influence(weighted_auc(few, scores, without), 1000)
    assert rare.freedom < 12  # all negatives matter, but six positives make the variance


def test_the_ends_are_as_far_out_as_a_t_intervals():
    drawn = stats.norm.ppf((np.arange(100_000) + 0.5) / 100_000) * math.sqrt(19 / 20)
    expected = stats.t.interval(0.95, 19)  # of a mean with standard error 1
    found = expanded_interval(drawn, Influence(20, 19.0))
    assert found == pytest.approx(expected, abs=1e-3)


def test_a_calibration_error_has_no_interval_and_differences_have_a_test_alone():
    """Perfect probabilities: every resample is worse calibrated than they are, and they than 0."""
    rng = np.random.default_rng(0)
    probability = rng.random(300)
    positive = rng.random(300) < probability
    runs = {
        name: lambda weights, p=p: {"Edema/ece": weighted_ece(positive, p, weights)}
        for name, p in (("true", probability), ("late", probability**4))
    }
    both = replicates(runs, [str(number) for number in range(300)], resamples=300, seed=0)
    true, late = (both[name]["Edema/ece"] for name in runs)
    assert np.quantile(true.replicates, 0.025) > 0.02
    assert true.interval is late.interval is None
    found = compared({0: late}, {0: true})
    assert found.patients.difference == late.value - true.value > 0.1
    assert found.interval is found.patients.interval is None
    assert found.p < 0.01


@pytest.mark.parametrize("positives", [1, 2])
def test_what_is_undefined_without_one_patient_has_no_interval_and_no_test(positives):
    """Intervals of an AUC by one positive held the truth, .8, in 14 of 100 sets of 150 patients."""
    rng = np.random.default_rng(0)
    positive = np.arange(150) < positives
    scores = rng.normal(size=(2, 150)) + 1.2 * positive
    runs = {
        name: lambda weights, s=s: {"auc": weighted_auc(positive, s, weights)}
        for name, s in zip("ab", scores, strict=True)
    }
    both = replicates(runs, [str(n) for n in range(150)], resamples=200, seed=0)
    one, two = (both[name]["auc"] for name in runs)
    assert one.value == pytest.approx(auc(positive, scores[0]))
    found, seeds = compared({0: one}, {0: two}), compared({0: one, 1: two}, {0: two, 1: one})
    given = one.interval, found.interval, found.p, seeds.p
    assert [value is not None for value in given] == [positives > 1] * 4


def test_no_interval_where_none_can_be_had():
    assert interval(np.arange(4.0), ["p"] * 4, 50) is None
    assert interval(np.arange(4.0), list("abcd"), 0) is None
    mostly_undefined = np.array([np.nan, np.nan, 1.0])
    assert percentile_interval(mostly_undefined) is None
    assert percentile_interval(np.array([np.nan, 1.0, 1.0])) == (1.0, 1.0)
