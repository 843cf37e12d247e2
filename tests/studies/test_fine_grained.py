"""The toy examples: the corrected numbers, and the losses against loops over single samples."""

from __future__ import annotations

import math

import numpy as np
import pytest

from studies.fine_grained import (
    BOUND_FOR_G2,
    DESIGN,
    SHARES,
    SIGNS,
    TAU_1,
    example_1,
    example_2,
    loss_1,
    losses_2,
)


def g(name, x):
    return math.log1p(x) if name == "g1" else x / (1 + x)


def test_example_1_has_the_corrected_minimiser_and_its_error():
    found = example_1("g1", starts=1)
    assert found["a"] == pytest.approx(-3.70e-6, rel=2e-3)
    assert found["b"] == pytest.approx(5.60e-6, rel=2e-3)
    assert found["c"] == pytest.approx(-9.81e-7, rel=2e-3)
    w = np.array([found[name] for name in "abc"]) / TAU_1
    for axis in np.eye(3):  # where the gradient vanishes
        assert abs(loss_1(w + 1e-3 * axis, "g1") - loss_1(w - 1e-3 * axis, "g1")) < 1e-7
    assert found["error"] == pytest.approx(0.4995, abs=1e-12)


def test_example_1_with_g2_keeps_within_its_bound():
    found = example_1("g2", starts=20)
    assert found["loss"] <= found["separator_loss"]
    assert found["error"] <= BOUND_FOR_G2 / g("g2", 1.0)
    assert pytest.approx(0.0407, abs=1e-4) == BOUND_FOR_G2


@pytest.mark.parametrize("name", ["g1", "g2"])
def test_population_loss_of_example_1_is_the_sum_over_pairs_of_samples(name):
    rng = np.random.default_rng(0)
    for _ in range(5):
        w = rng.normal(size=3)
        total = 0.0
        for i, one in enumerate(DESIGN):
            for j in range(len(DESIGN)):
                if SIGNS[i] == SIGNS[j]:
                    continue
                u = w[0] * one[0] + w[1] * one[1] + w[2] * one[2]
                ratio = math.exp((SIGNS[j] - SIGNS[i]) / 2 * u)
                total += 0.5 * SHARES[i] * 0.5 * SHARES[j] * g(name, ratio)
        assert loss_1(w, name) == pytest.approx(total, rel=1e-12)


def test_population_losses_of_example_2_are_sums_over_pairs_of_samples():
    theta, rare, tau = 0.3, 0.05, 0.2
    x, y = (1, 1, 1, -1), [math.pi / 12 * n for n in (-1, 1, -5, 3)]
    p = ((0.95 - rare) / 2, (0.95 - rare) / 2, rare, rare)
    expected = dict.fromkeys(("clip", "g1", "g2"), 0.0)
    for i in range(4):
        for j in range(4):
            own = x[i] * math.cos(y[i] + theta)
            text = math.exp((x[i] * math.cos(y[j] + theta) - own) / tau)
            image = math.exp((x[j] * math.cos(y[i] + theta) - own) / tau)
            expected["clip"] += p[i] * p[j] * (math.log1p(text) + math.log1p(image))
            if x[i] != x[j]:
                expected["g1"] += p[i] * p[j] * g("g1", text)
                expected["g2"] += p[i] * p[j] * g("g2", text)
    losses, _ = losses_2(np.array([theta]), rare, tau)
    for name, value in expected.items():
        assert losses[name][0] == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("rare", "fails"), [(0.01, True), (0.05, False), (0.2, False)])
def test_clip_fails_in_example_2_for_a_rare_label_only(rare, fails):
    found = example_2(rare, 0.05, 4001)
    assert (found["clip_error"] >= rare) == fails
    assert found["g1_error"] == found["g2_error"] == 0.0
