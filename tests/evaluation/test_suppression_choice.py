"""How a rule is chosen: thresholds by counting, levels by leaving out, probabilities by Newton."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from medclip_debias.evaluation.decisions.probability import platt
from medclip_debias.evaluation.sentence_choice import (
    choose_threshold,
    fit_level,
)
from medclip_debias.grounding.settings import SuppressionSettings


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=2, max_size=40),
    st.sampled_from([0.5, 0.8, 0.95, 0.98]),
    st.sampled_from(["kept", "specificity"]),
)
def test_the_threshold_holds_the_aim_and_no_better_one_does(items, share, aim):
    values = np.array([float(value) for value, _ in items])
    there = np.array([is_there for _, is_there in items])
    if there.all() or not there.any():
        return
    threshold = choose_threshold(values, there, SuppressionSettings(aim=aim, share=share))

    def held(t):
        if aim == "kept":
            return (values[there] >= t).mean() >= share - 1e-12
        return (values[~there] < t).mean() >= share - 1e-12

    def gain(t):
        return (values[~there] < t).mean() if aim == "kept" else (values[there] >= t).mean()

    assert held(threshold)
    tries = [*values, *(v + 0.5 for v in values), values.min() - 1]
    assert gain(threshold) == max(gain(t) for t in tries if held(t))


def test_levels_are_those_of_a_ridge_regression_whose_penalty_leaving_one_out_prefers():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 4))
    levels = vectors @ [0.3, -0.2, 0.0, 0.1] + 0.7 + rng.normal(0, 0.05, 30)

    def ridge(x, y, penalty):
        centre = x.mean(axis=0)
        a = x - centre
        w = np.linalg.solve(a.T @ a + penalty * np.eye(4), a.T @ (y - y.mean()))
        return w, y.mean() - centre @ w

    def left_out(penalty):
        errors = []
        for n in range(30):
            keep = np.arange(30) != n
            w, b = ridge(vectors[keep], levels[keep], penalty)
            errors.append(levels[n] - vectors[n] @ w - b)
        return np.mean(np.square(errors))

    weights, constant, explained = fit_level(vectors, levels)
    best = min(np.logspace(-4, 2, 13), key=left_out)
    wanted, b = ridge(vectors, levels, best)
    np.testing.assert_allclose(weights, wanted, rtol=1e-9)
    assert constant == pytest.approx(b)
    assert explained == pytest.approx(1 - left_out(best) / levels.var(), rel=0.02)


def test_levels_of_few_equal_sentences_do_not_break():
    weights, constant, explained = fit_level(np.ones((3, 5)), np.full(3, 0.4))
    assert weights @ np.ones(5) + constant == pytest.approx(0.4)
    assert explained == 0


def test_probabilities_maximise_the_balanced_likelihood_of_platt():
    rng = np.random.default_rng(1)
    there = np.arange(200) < 40
    values = rng.normal(0, 0.1, 200) + 0.2 * there

    def loss(w):
        p = 1 / (1 + np.exp(-(w[0] * values + w[1])))
        total = 0.0
        for own, weight in ((there, 0.5), (~there, 0.5)):
            n = own.sum()
            t = (n + 1) / (n + 2) if own is there else 1 / (n + 2)
            total -= weight * np.mean(t * np.log(p[own]) + (1 - t) * np.log(1 - p[own]))
        return total

    found = minimize(loss, [10.0, -1.0], method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 0})
    slope, intercept = platt(values, there, balanced=True)
    assert slope == pytest.approx(found.x[0], rel=1e-3)
    assert intercept == pytest.approx(found.x[1], rel=1e-3)
    apart = np.array([0.0, 0.0, 1.0, 1.0])
    slope, _ = platt(apart, apart == 1, balanced=True)
    assert 0 < slope < 50  # finite, though nothing overlaps
