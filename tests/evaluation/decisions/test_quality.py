"""Calibration metrics against loops, scikit-learn, and probabilities that are right by design."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from medclip_debias.evaluation.decisions.probability import equal_mass_bin, qualities, recalibration
from medclip_debias.evaluation.metrics import sigmoid

RNG = np.random.default_rng(4)
LOGITS = RNG.normal(-1, 1.5, 3000)
RIGHT = RNG.random(3000) < sigmoid(LOGITS)
ONE = np.ones((1, 3000))


def test_right_probabilities_have_intercept_0_and_slope_1():
    found = {name: float(v[0]) for name, v in qualities(RIGHT, LOGITS, ONE).items()}
    assert found["intercept"] == pytest.approx(0, abs=0.1)
    assert found["slope"] == pytest.approx(1, abs=0.1)
    assert found["ece"] < 0.03
    p = sigmoid(LOGITS)
    assert found["brier"] == pytest.approx(np.mean((p - RIGHT) ** 2), abs=1e-12)
    assert found["brier"] == pytest.approx(np.mean(p * (1 - p)), abs=0.01)


def test_intercept_and_slope_are_the_regressions():
    model = LogisticRegression(C=1e14, tol=1e-12, max_iter=10_000)
    model.fit(LOGITS[:, None], RIGHT)
    intercept, slope = recalibration(RIGHT, LOGITS, ONE)
    assert slope[0] == pytest.approx(model.coef_[0, 0], rel=1e-4)
    # The intercept with slope 1 is where the mean probability is the share of positives.
    assert sigmoid(LOGITS + intercept[0]).mean() == pytest.approx(RIGHT.mean(), abs=1e-8)


def test_weights_are_repetitions_in_every_quality():
    weights = RNG.integers(0, 3, (2, 200)).astype(float)
    y, x = RIGHT[:200], LOGITS[:200]
    found = qualities(y, x, weights)
    for number, row in enumerate(weights):
        rows = np.repeat(np.arange(200), row.astype(int))
        again = qualities(y[rows], x[rows], np.ones((1, len(rows))))
        for name in set(found) - {"ece_equal_mass"}:  # whose bins are the unweighted images'
            assert found[name][number] == pytest.approx(again[name][0], abs=1e-7), name


def test_equal_mass_bins_hold_as_many_and_keep_ties_together():
    assert set(np.bincount(equal_mass_bin(np.arange(300) / 300)).tolist()) == {20}
    tied = np.repeat([0.1, 0.7], 50)
    assert len(set(equal_mass_bin(tied))) == 2
    assert set(equal_mass_bin(np.full(9, 0.3))) <= set(range(15))


def test_what_is_undefined_is_not_a_number():
    same = np.zeros(30, bool)
    assert np.isnan(np.array(recalibration(same, LOGITS[:30], np.ones((1, 30))))).all()
    apart = LOGITS[:30] > np.median(LOGITS[:30])
    intercept, slope = recalibration(apart, LOGITS[:30], np.ones((1, 30)))
    assert np.isfinite(intercept[0])
    assert np.isnan(slope[0])
    constant = recalibration(RIGHT[:30], np.zeros(30), np.ones((1, 30)))
    assert np.isnan(constant[1][0])
    share = RIGHT[:30].mean()
    assert constant[0][0] == pytest.approx(np.log(share / (1 - share)))
