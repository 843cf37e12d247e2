"""Fits, their quality and shifts of prevalence, against scikit-learn, Bayes and limits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from medclip_debias.errors import UserError
from medclip_debias.evaluation.decisions.probability import (
    Unfit,
    equal_mass_bin,
    estimated_prevalence,
    fit,
    logistic,
    qualities,
    recalibration,
    shifted,
)
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


@settings(max_examples=25)
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


# ------------------------------------------------------------ quality of probabilities


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


# ------------------------------------------------------------ another prevalence


def normal_logits(n, share, seed, gap=2.0, at=0.4):
    """Exact log-odds at the prevalence ``at`` of scores N(+-gap/2, 1), ``share`` positive."""
    rng = np.random.default_rng(seed)
    positive = rng.random(n) < share
    scores = rng.normal(size=n) + gap * (positive - 0.5)
    return gap * scores + np.log(at / (1 - at)), positive


def test_shifted_odds_are_bayes_rule():
    from scipy.stats import norm

    x = np.linspace(-3, 3, 13)

    def posterior(share):
        yes, no = share * norm.pdf(x, 1), (1 - share) * norm.pdf(x, -1)
        return yes / (yes + no)

    logits = np.log(posterior(0.4)) - np.log1p(-posterior(0.4))
    assert sigmoid(shifted(logits, 0.4, 0.05)) == pytest.approx(posterior(0.05), abs=1e-12)
    assert shifted(logits, 0.4, 0.4) == pytest.approx(logits)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_the_estimate_is_the_likeliest_share(share):
    logits, positive = normal_logits(2000, share, seed=int(100 * share))
    found = estimated_prevalence(logits, 0.4)
    p = sigmoid(logits)
    shares = np.linspace(0.001, 0.999, 20_001)
    likelihood = [np.log(t * p / 0.4 + (1 - t) * (1 - p) / 0.6).sum() for t in shares]
    assert found == pytest.approx(shares[int(np.argmax(likelihood))], abs=1e-4)
    assert found == pytest.approx(positive.mean(), abs=0.03)


def test_a_share_of_none_or_all_is_refused_and_no_estimate_is_made_up():
    for share in (0.0, 1.0):
        with pytest.raises(UserError, match="strictly between 0 and 1"):
            shifted(np.zeros(2), 0.4, share)
    with pytest.raises(Unfit, match=r"these 50 images: the likeliest is 0"):
        estimated_prevalence(np.full(50, -4.0), 0.4)
    with pytest.raises(Unfit, match=r"likeliest is 1"):
        estimated_prevalence(np.full(50, 4.0), 0.4)
