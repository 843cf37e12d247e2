"""Every metric against plain loops, scikit-learn, or a case whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import (
    average_precision_score,
    f1_score,
    precision_recall_curve,
    roc_auc_score,
)

from medclip_debias.evaluation.metrics import (
    MIDDLE_THRESHOLDS,
    THRESHOLDS,
    auc,
    average_precision,
    best_threshold,
    reliability,
    sigmoid,
    weighted_average_precision,
    weighted_ece,
    weighted_f1,
)


def test_the_thresholds_are_the_41_of_the_paper():
    assert THRESHOLDS.tolist() == [k / 20 for k in range(-20, 21)]
    assert MIDDLE_THRESHOLDS.tolist() == [0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5]


@given(st.lists(st.tuples(st.booleans(), st.integers(-4, 4)), min_size=2, max_size=40))
def test_areas_and_best_f1_are_scikit_learns_also_with_ties(items):
    labels, scores = np.array([yes for yes, _ in items]), np.array([k / 7 for _, k in items])
    if labels.all() or not labels.any():
        assert math.isnan(auc(labels, scores))
        return
    assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    expected = average_precision_score(labels, scores)
    assert average_precision(labels, scores) == pytest.approx(expected)
    precision, recall, _ = precision_recall_curve(labels, scores)
    with np.errstate(invalid="ignore"):
        highest = np.nanmax(2 * precision * recall / (precision + recall))
    threshold, f1 = best_threshold(labels, scores)
    assert f1 == pytest.approx(highest)
    assert f1_score(labels, scores >= threshold) == pytest.approx(f1)
    better = {t for t in scores if t > threshold}
    assert all(f1_score(labels, scores >= t, zero_division=0) < f1 for t in better)


def test_weights_are_repetitions():
    rng = np.random.default_rng(0)
    labels, scores = rng.random(30) > 0.6, rng.integers(0, 6, 30) / 5
    weights = rng.integers(0, 3, (4, 30)).astype(float)
    precision = weighted_average_precision(labels, scores, weights)
    f1 = weighted_f1(labels, scores >= 0.4, weights)
    ece = weighted_ece(labels, sigmoid(scores), weights)
    for row, w in enumerate(weights):
        again, given = np.repeat(np.arange(30), w.astype(int)), {"sample_weight": w}
        assert precision[row] == pytest.approx(average_precision_score(labels, scores, **given))
        assert f1[row] == pytest.approx(f1_score(labels, scores >= 0.4, **given))
        one = weighted_ece(labels[again], sigmoid(scores[again]), np.ones((1, len(again))))
        assert ece[row] == pytest.approx(one[0])
    assert np.isnan(weighted_average_precision(np.zeros(3, bool), scores[:3], np.ones((1, 3)))[0])


def test_calibration_is_the_mean_gap_of_15_bins():
    rng = np.random.default_rng(1)
    probability = np.r_[rng.random(500), 0.0, 1.0]
    labels = rng.random(502) < probability**2
    shares, means = calibration_curve(labels, probability, n_bins=15, strategy="uniform")
    bins = reliability(labels, probability)
    assert [b["positive"] for b in bins] == pytest.approx(shares)
    assert [b["probability"] for b in bins] == pytest.approx(means)
    counts = np.array([b["images"] for b in bins])
    assert counts.sum() == 502
    expected = (counts * np.abs(shares - means)).sum() / 502
    assert weighted_ece(labels, probability, np.ones((1, 502)))[0] == pytest.approx(expected)
    assert sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0, 0.5, 1]
