"""What docs/theory.md states, checked on small populations with the project's own losses.

A population is a list of images with probabilities p and, for one sentence, the probability pi that
an image agrees with it. Negatives are all images with weights N p, so that sums are expectations;
positives are all images with p(x|t) = p pi / E[pi].
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from scipy.optimize import brentq, minimize

from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.debiased import debiased_per_anchor

PI = torch.tensor([0.02, 0.1, 0.3, 0.6, 0.9], dtype=torch.float64)
P = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1], dtype=torch.float64)
POSITIVE = P * PI / (P * PI).sum()
LIMIT = float(0.5 * (P * (1 - (1 - PI / PI.max()).sqrt())).sum())
"""Largest eta with a stable optimum (theorem 2)."""


def population(scores):
    """Anchors: each image in turn as the positive, all images as negatives of weight N p."""
    n, places = len(scores), torch.arange(len(scores))
    everyone = torch.ones(n, n, dtype=torch.bool)
    scale, weights = torch.tensor(60.0, dtype=torch.float64), (1e9 * P).expand(n, n)
    return Anchors(
        scores.expand(n, n), scores, everyone, scale, places, places, "text", places, places,
        everyone, weights,
    )  # fmt: skip


def minimum(loss, start):
    """Scores at which ``loss`` of them is smallest."""

    def value_and_gradient(x):
        scores = torch.tensor(x, requires_grad=True)
        value = loss(scores)
        return value.item(), torch.autograd.grad(value, scores)[0].numpy()

    x = start.double().numpy()
    return torch.from_numpy(minimize(value_and_gradient, x, jac=True, options={"gtol": 1e-10}).x)


def expected_loss(eta):
    etas = torch.full_like(P, eta)
    return lambda scores: (POSITIVE * debiased_per_anchor(population(scores), etas)[0]).sum()


def ratio(scores):
    """``r = e^s / E_p[e^s]``."""
    return scores.exp() / (P * scores.exp()).sum()


@pytest.fixture(scope="module")
def plain():
    """Scores where InfoNCE is smallest."""
    return minimum(expected_loss(0.0), torch.zeros(5))


def test_infonce_is_smallest_at_the_density_ratio(plain):
    assert torch.allclose(ratio(plain), PI / (P * PI).sum(), rtol=1e-5)


def test_the_debiased_loss_is_smallest_where_rho_is_r_times_one_minus_eta_r():
    """r of theorem 2 solves rho = c r (1 - eta r) with eta r < 1/2 and E_p[r] = 1."""
    eta, rho = 0.8 * LIMIT, PI / (P * PI).sum()

    def r_of(c):
        return (1 - (1 - 4 * eta * rho / c).clamp(min=0).sqrt()) / (2 * eta)

    least = float(4 * eta * rho.max())
    c = brentq(lambda c: float((P * r_of(c)).sum()) - 1, least, 1e4, xtol=1e-14)
    r = ratio(minimum(expected_loss(eta), torch.zeros(5)))
    assert torch.allclose(r, r_of(c), rtol=1e-4)
    assert float(eta * r.max()) < 0.5
    assert (r.diff() > 0).all()  # the same order of the images
    assert r[-1] > rho[-1]  # sharper at the top
    assert r[0] < rho[0]


def test_beyond_the_limit_of_eta_there_is_no_stable_optimum(plain):
    loss = expected_loss(1.3 * LIMIT)
    end = minimum(loss, plain)
    assert loss(end) < loss(plain)
    assert float(1.3 * LIMIT * ratio(end).max()) > 0.5  # it ran past the last stable point
    # 1 - sqrt(1 - x) lies between x / 2 and x.
    true = float((P * PI).sum() / PI.max())
    assert 0.25 * true <= LIMIT <= 0.5 * true


def test_with_many_positives_the_optimum_is_the_odds():
    """M to infinity: the corrected negatives are the true ones, p (1 - pi) / (1 - eta)."""
    eta, one = float((P * PI).sum()), torch.ones(5, 1, dtype=torch.bool)

    def loss(scores):
        v = (POSITIVE * scores.exp()).sum().log()
        anchors = population(scores)
        # v is the logit of one more candidate, the only positive.
        anchors = replace(
            anchors,
            logits=torch.cat([anchors.logits, v.expand(5, 1)], dim=1),
            negatives=torch.cat([anchors.negatives, ~one], dim=1),
            positives=torch.cat([~anchors.negatives, one], dim=1),
            weights=torch.cat([anchors.weights, one], dim=1),
        )
        return (POSITIVE * debiased_per_anchor(anchors, torch.full_like(P, eta))[0]).sum()

    scores, odds = minimum(loss, torch.zeros(5)), (PI / (1 - PI)).log()
    assert torch.allclose(scores - scores.mean(), odds - odds.mean(), atol=1e-4)
