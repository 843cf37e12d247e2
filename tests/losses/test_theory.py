"""What docs/theory.md states, checked on small populations with the project's own losses.

A population is a list of images with probabilities p and, for one sentence, the probability pi that
an image agrees with it. Negatives are all images with weights N p, so that sums are expectations;
positives are all images with p(x|t) = p pi / E[pi].
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from medclip_debias.losses import ContrastiveBatch
from medclip_debias.losses.batch import Anchors
from medclip_debias.losses.debiased import debiased_per_anchor
from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.losses.pairs import soft_cross_entropy

MANY = 1e9
SCALE = 60.0
PI = torch.tensor([0.02, 0.1, 0.3, 0.6, 0.9], dtype=torch.float64)
P = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.1], dtype=torch.float64)


def population(scores, p, negatives_p=None):
    """Anchors: each image in turn as the positive, all images as negatives of weight N p."""
    n = len(scores)
    places = torch.arange(n)
    weights = MANY * (p if negatives_p is None else negatives_p)
    return Anchors(
        logits=scores.expand(n, n),
        positive=scores,
        negatives=torch.ones(n, n, dtype=torch.bool),
        scale=torch.tensor(SCALE, dtype=torch.float64),
        positive_column=places,
        rows=places,
        side="text",
        images=places,
        candidates=places,
        others=torch.ones(n, n, dtype=torch.bool),
        weights=weights.expand(n, n),
    )


def expected_loss(scores, p, pi, eta):
    positive = p * pi / (p * pi).sum()
    anchors = population(scores, p)
    return (positive * debiased_per_anchor(anchors, torch.full_like(p, eta))[0]).sum()


def minimum(p, pi, eta, start=None):
    """Scores (mean 0) at which the expected loss is smallest."""
    scores = (torch.zeros_like(p) if start is None else start).clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [scores], lr=0.5, max_iter=800, tolerance_grad=1e-13, tolerance_change=1e-16,
        line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure():
        optimiser.zero_grad()
        loss = expected_loss(scores, p, pi, eta)
        loss.backward()
        return loss

    optimiser.step(closure)
    return scores.detach()


def ratio(scores, p):
    """``r = e^s / E_p[e^s]``."""
    return scores.exp() / (p * scores.exp()).sum()


def limit_of_eta(p, pi):
    """Largest eta with a stable optimum (theorem 2)."""
    return 0.5 * (p * (1 - (1 - pi / pi.max()).sqrt())).sum()


def closed_form(p, pi, eta):
    """r of theorem 2: the solution of rho = c r (1 - eta r) with eta r < 1/2 and E_p[r] = 1."""
    rho = pi / (p * pi).sum()

    def r_of(c):
        return (1 - (1 - 4 * eta * rho / c).clamp(min=0).sqrt()) / (2 * eta)

    least = float(4 * eta * rho.max())
    c = brentq(lambda c: float((p * r_of(c)).sum()) - 1, least, 1e4, xtol=1e-14)
    return r_of(c)


def test_infonce_is_smallest_at_the_density_ratio():
    r = ratio(minimum(P, PI, 0.0), P)
    assert torch.allclose(r, PI / (P * PI).sum(), rtol=1e-5)


def test_the_debiased_loss_is_smallest_where_rho_is_r_times_one_minus_eta_r():
    eta = 0.8 * float(limit_of_eta(P, PI))
    r = ratio(minimum(P, PI, eta), P)
    assert torch.allclose(r, closed_form(P, PI, eta), rtol=1e-4)
    assert float(eta * r.max()) < 0.5
    plain = PI / (P * PI).sum()
    assert (r.diff() > 0).all()  # the same order of the images
    assert r[-1] > plain[-1]  # sharper at the top
    assert r[0] < plain[0]


def test_beyond_the_limit_of_eta_there_is_no_stable_optimum():
    eta = 1.3 * float(limit_of_eta(P, PI))
    start = minimum(P, PI, 0.0)
    end = minimum(P, PI, eta, start=start)
    loss = [float(expected_loss(s, P, PI, eta)) for s in (start, end)]
    assert loss[1] < loss[0]
    assert float(eta * ratio(end, P).max()) > 0.5  # it ran past the last stable point


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.01, 1), min_size=3, max_size=6),
    st.lists(st.floats(0.05, 1), min_size=3, max_size=6),
)
def test_the_limit_lies_below_half_of_the_true_probability(weights, agree):
    n = min(len(weights), len(agree))
    p = torch.tensor(weights[:n], dtype=torch.float64)
    p, pi = p / p.sum(), torch.tensor(agree[:n], dtype=torch.float64)
    assume(float(pi.max()) <= 1)
    true = (p * pi).sum()
    # 1 - sqrt(1 - x) lies between x / 2 and x.
    assert 0.25 * true / pi.max() - 1e-12 <= limit_of_eta(p, pi) <= 0.5 * true / pi.max() + 1e-12


@pytest.mark.parametrize("eta", [0.0, 0.3, 0.9])
def test_at_the_start_an_anchor_pulls_with_one_over_one_minus_eta(eta):
    similarity = torch.zeros(64, 64, dtype=torch.float64, requires_grad=True)
    batch = ContrastiveBatch(similarity, torch.tensor(1.0).double(), eta=torch.full((64,), eta))
    for weigh, expected in ((False, 1 / (1 - eta)), (True, 1.0)):
        content = {"kind": "debiased", "eta": {"kind": "table"}, "weigh_anchors": weigh}
        loss = build_objective(loss_settings(content, "test"))(batch).loss
        (gradient,) = torch.autograd.grad(loss, similarity)
        plain = build_objective(loss_settings({"kind": "infonce"}, "test"))(batch).loss
        (reference,) = torch.autograd.grad(plain, similarity)
        assert torch.allclose(gradient, expected * reference, rtol=1e-5)


def test_with_many_positives_the_optimum_is_the_odds():
    """M to infinity: the corrected negatives are the true ones, p (1 - pi) / (1 - eta)."""
    eta = float((P * PI).sum())
    positive, true_negatives = P * PI / eta, P * (1 - PI) / (1 - eta)
    scores = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([scores], max_iter=500, line_search_fn="strong_wolfe")

    def closure():
        optimiser.zero_grad()
        v = (positive * scores.exp()).sum().log()
        anchors, one = population(scores, P), torch.ones(5, 1, dtype=torch.bool)
        # v is the logit of one more candidate, the only positive.
        anchors = replace(
            anchors,
            logits=torch.cat([anchors.logits, v.expand(5, 1)], dim=1),
            negatives=torch.cat([anchors.negatives, ~one], dim=1),
            positives=torch.cat([~anchors.negatives, one], dim=1),
            weights=torch.cat([anchors.weights, one], dim=1),
        )
        value, _ = debiased_per_anchor(anchors, torch.full_like(P, eta))
        loss = (positive * value).sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    odds = (PI / (1 - PI)).log()
    found = scores.detach()
    assert torch.allclose(found - found.mean(), odds - odds.mean(), atol=1e-4)
    # and the corrected sum is the sum over the true negatives, whatever the scores
    some = torch.tensor([0.3, -1.0, 0.5, 2.0, 0.1], dtype=torch.float64)
    left = (P * some.exp()).sum() - eta * (positive * some.exp()).sum()
    assert torch.allclose(left / (1 - eta), (true_negatives * some.exp()).sum())


@pytest.mark.parametrize("kind", ["infonce", "debiased", "multi_positive"])
def test_a_constant_for_a_sentence_changes_no_loss_from_text_to_image(kind, make_batch):
    """Below its floor the debiased loss sees the absolute score; above it, differences alone."""
    batch = make_batch(2, scale=5.0, eta=torch.full((8,), 0.05))
    content = {"kind": kind} | ({"eta": {"kind": "table"}} if kind == "debiased" else {})
    objective = build_objective(loss_settings(content, "test")).double()
    shifted = make_batch(
        2, scale=5.0, eta=torch.full((8,), 0.05),
        similarity=batch.similarity + torch.linspace(-0.2, 0.2, 8, dtype=torch.float64),
    )  # fmt: skip
    assert torch.allclose(objective(batch).per_anchor, objective(shifted).per_anchor)


def test_positives_by_evidence_are_smallest_at_the_shares_of_agreement():
    """Definition A: softmax over the candidates equals the targets, q normalised."""
    q = torch.tensor([1.0, 1.0, 0.0, 0.3], dtype=torch.float64)
    scores = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS([scores], max_iter=500, line_search_fn="strong_wolfe")
    target = (q / q.sum())[None]

    def closure():
        optimiser.zero_grad()
        batch = ContrastiveBatch(
            scores[:, None] / 10, torch.tensor(10.0).double(), torch.tensor([0])
        )
        loss = soft_cross_entropy(batch.anchors("text_to_image")[0], target)
        loss.sum().backward()
        return loss.sum()

    optimiser.step(closure)
    found = torch.softmax(scores.detach(), 0)
    assert torch.allclose(found, target[0], atol=1e-3)


def test_a_sentence_true_of_nine_in_ten_holds_a_tenth_of_a_nat():
    agree = torch.tensor([1.0] * 9 + [0.0], dtype=torch.float64)
    positive = agree / agree.sum()
    information = (positive[:9] * (positive[:9] / 0.1).log()).sum()
    assert float(information) == pytest.approx(-torch.tensor(0.9).log().item(), rel=1e-6)
