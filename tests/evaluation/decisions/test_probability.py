"""Scores to log-odds: against scikit-learn, closed forms and brute force; what allows no fit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from medclip_debias.errors import UserError
from medclip_debias.evaluation.decisions.probability import Unfit, fit, logistic
from medclip_debias.evaluation.metrics import sigmoid


def sample(n=400, seed=0, gap=1.0, share=0.4):
    rng = np.random.default_rng(seed)
    positive = rng.random(n) < share
    return rng.normal(size=n) * 0.1 + 0.1 * gap * positive + 0.3, positive


def test_platt_is_the_weighted_logistic_regression_on_his_targets():
    scores, positive = sample()
    yes, no = int(positive.sum()), int((~positive).sum())
    share = np.where(positive, (yes + 1) / (yes + 2), 1 / (no + 2))
    twice = np.concatenate([scores, scores])[:, None]
    labels = np.repeat([1, 0], len(scores))
    model = LogisticRegression(C=1e14, tol=1e-12, max_iter=10_000)
    model.fit(twice, labels, sample_weight=np.concatenate([share, 1 - share]))
    found = fit("platt", scores, positive)
    assert found.slope == pytest.approx(model.coef_[0, 0], rel=1e-4)
    assert found.intercept == pytest.approx(model.intercept_[0], rel=1e-4)


def test_a_temperature_is_the_likeliest_slope_through_nought():
    scores, positive = sample(seed=1, gap=3)
    scores -= 0.45
    found = fit("temperature", scores, positive)
    yes, no = int(positive.sum()), int((~positive).sum())
    share = np.where(positive, (yes + 1) / (yes + 2), 1 / (no + 2))
    slopes = np.linspace(0.5, 2, 2001)[:, None] * found.slope
    z = slopes * scores
    loss = (np.logaddexp(0, z) - share * z).sum(axis=1)
    assert slopes[loss.argmin(), 0] == pytest.approx(found.slope, rel=1e-3)
    assert found.intercept == 0


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=3, max_size=14))
def test_isotonic_steps_are_the_min_max_of_means_even_with_ties(rows):
    """Barlow's formula: max over lower ends of the min over upper ends of the mean between."""
    scores = np.array([float(score) for score, _ in rows])
    positive = np.array([label for _, label in rows])
    try:
        found = fit("isotonic", scores, positive)
    except Unfit:
        return
    distinct = np.unique(scores)
    edge = 1 / (len(rows) + 2)
    for place, score in enumerate(distinct):
        best = max(
            min(positive[(scores >= low) & (scores <= high)].mean() for high in distinct[place:])
            for low in distinct[: place + 1]
        )
        expected = min(max(best, edge), 1 - edge)
        assert sigmoid(found.logits(np.array([score])))[0] == pytest.approx(expected, abs=1e-9)


def test_separable_scores_and_a_single_positive_have_finite_probabilities():
    scores = np.arange(40) / 40
    for method, count in itertools.product(("platt", "temperature", "isotonic"), (1, 20)):
        positive = np.arange(40) >= 40 - count
        shifted = scores - scores[40 - count] + 0.01
        logits = fit(method, shifted, positive).logits(shifted)
        assert np.isfinite(logits).all()
        assert (np.diff(logits) >= 0).all()
        assert logits[-1] > logits[0]


@pytest.mark.parametrize("method", ["platt", "temperature", "isotonic"])
def test_what_allows_no_fit_is_said(method):
    scores, positive = sample(60)
    with pytest.raises(Unfit, match="one label value only"):
        fit(method, scores, np.zeros(60, bool))
    with pytest.raises(Unfit, match="all scores are equal"):
        fit(method, np.full(60, 0.2), positive)
    with pytest.raises(Unfit, match="do not rise with the finding"):
        fit(method, -np.arange(60.0) - 1, np.arange(60) > 30)
    with pytest.raises(UserError, match="1 of 60 scores are not finite"):
        fit(method, np.r_[np.nan, scores[1:]], positive)


def test_logistic_regression_under_weights_is_that_of_repeated_rows():
    scores, positive = sample(80, seed=2)
    x = np.stack([scores, np.ones(80)], axis=1)
    weights = np.random.default_rng(0).integers(0, 4, (3, 80)).astype(float)
    found = logistic(x, positive.astype(float), weights)
    for row, expected in zip(weights, found, strict=True):
        rows = np.repeat(np.arange(80), row.astype(int))
        again = logistic(x[rows], positive[rows].astype(float), np.ones((1, len(rows))))[0]
        assert expected == pytest.approx(again, rel=1e-8)
        model = LogisticRegression(C=1e14, tol=1e-12, max_iter=10_000)
        model.fit(scores[rows, None], positive[rows])
        assert expected[0] == pytest.approx(model.coef_[0, 0], rel=1e-4)
    assert np.isnan(logistic(x, positive.astype(float), np.zeros((1, 80)))).all()
