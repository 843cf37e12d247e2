"""The weighted forms against copied items, and the coverage of the intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from medclip_debias.evaluation.bootstrap import (
    bootstrap_intervals,
    percentile_interval,
    resample_weights,
    weighted_auc,
    weighted_mean,
    weighted_median,
)
from medclip_debias.evaluation.metrics import auc


@pytest.mark.parametrize("seed", range(5))
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


def test_statistics_without_weight_are_undefined_not_zero():
    weights = np.zeros((1, 3))
    assert math.isnan(weighted_mean([1, 2, 3], weights)[0])
    assert math.isnan(weighted_median([1, 2, 3], weights)[0])
    assert math.isnan(weighted_auc([True, False, True], [1, 2, 3], np.array([[1.0, 0, 1]]))[0])


def test_items_of_a_patient_are_drawn_together():
    patients = ["a", "b", "a", "c", "b", "a"]
    for weights in resample_weights(patients, 50, seed=1, block=20):
        assert (weights[:, 0] == weights[:, 2]).all()
        assert (weights[:, 0] == weights[:, 5]).all()
        assert (weights[:, 1] == weights[:, 4]).all()
        assert (weights[:, 0] + weights[:, 1] + weights[:, 3] == 3).all()


def test_equal_seeds_give_equal_intervals_whatever_the_block():
    values = np.random.default_rng(0).normal(size=40)
    patients = [str(i // 2) for i in range(40)]

    def once(seed):
        return bootstrap_intervals(
            lambda w: {"mean": weighted_mean(values, w)}, patients, resamples=300, seed=seed
        )

    assert once(3) == once(3)
    assert once(3) != once(4)
    whole = np.concatenate(list(resample_weights(patients, 150, 3, block=150)))
    blocks = np.concatenate(list(resample_weights(patients, 150, 3, block=40)))
    np.testing.assert_array_equal(whole, blocks)


def test_nominal_95_percent_covers_the_truth_about_that_often():
    """Two items per patient, fully dependent: ignoring patients would cover about 83%."""
    rng = np.random.default_rng(7)
    hits = 0
    for trial in range(200):
        values = np.repeat(rng.normal(size=60), 2)
        patients = [str(i // 2) for i in range(120)]
        interval = bootstrap_intervals(
            lambda w, v=values: {"mean": weighted_mean(v, w)}, patients, resamples=300, seed=trial
        )["mean"]
        assert interval is not None
        hits += interval[0] <= 0 <= interval[1]
    assert 0.90 <= hits / 200 <= 0.99


def test_no_interval_where_none_can_be_had():
    def mean(weights):
        return {"mean": weighted_mean(np.arange(4.0), weights)}

    assert bootstrap_intervals(mean, ["p"] * 4, resamples=50) == {"mean": None}
    assert bootstrap_intervals(mean, list("abcd"), resamples=0) == {"mean": None}
    mostly_undefined = np.array([np.nan, np.nan, 1.0])
    assert percentile_interval(mostly_undefined) is None
    assert percentile_interval(np.array([np.nan, 1.0, 1.0])) == (1.0, 1.0)
