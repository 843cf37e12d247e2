"""The pooled same-class mean against loops over single pairs in float64, and limit cases."""

from __future__ import annotations

import math

import pytest
import torch

from medclip_debias.losses import (
    ConstantEta,
    ContrastiveBatch,
    DebiasedContrastive,
    DebiasedSettings,
    TableEta,
)
from medclip_debias.losses.objective import build_objective, loss_settings
from studies.debiased_pooled import PooledDebiased, PooledSettings


def pooled(**settings):
    return PooledDebiased(PooledSettings(**({"eta": TableEta()} | settings))).double()


def loss_of(s, owner, eta, mean, scale):
    """Equations 7 and 8 with the floor for one sentence, ``mean`` in the place of exp(s+)."""
    pos = math.exp(s[owner])
    negatives = [math.exp(v) for i, v in enumerate(s) if i != owner]
    n = len(negatives)
    ng = max((sum(negatives) - n * eta * mean) / (1 - eta), n * math.exp(-scale))
    return -math.log(pos / (pos + ng))


def test_one_pair_is_the_debiased_loss(make_batch):
    batch = make_batch()
    plain = DebiasedContrastive(DebiasedSettings(eta=TableEta())).double()
    assert torch.equal(pooled(pool="pair")(batch).per_anchor, plain(batch).per_anchor)
    # No two different sentences are alike beyond a cosine of 1.
    apart = make_batch(text_similarity=torch.eye(8, dtype=torch.float64))
    found = pooled(pool="text")(apart).per_anchor
    assert torch.allclose(found, plain(apart).per_anchor, rtol=0, atol=1e-12)


@pytest.mark.parametrize("draw", range(4))
def test_like_sentences_share_their_images(make_batch, draw):
    batch = make_batch(draw, eta=torch.full((8,), 0.3, dtype=torch.float64))
    found = pooled(pool="text", threshold=0.2)(batch).per_anchor
    owners, alike = batch.owners.tolist(), batch["text_similarity"]
    for j in range(8):
        s = (batch.similarity[:, j] * batch.scale).tolist()
        members = {owners[k] for k in range(8) if alike[j, k] >= 0.2} | {owners[j]}
        mean = sum(math.exp(s[i]) for i in members) / len(members)
        expected = loss_of(s, owners[j], 0.3, mean, float(batch.scale))
        assert found[j].item() == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("pool", ["pair", "text"])
def test_a_constant_added_to_all_scores_changes_neither_loss_nor_gradient(make_batch, pool):
    """Above the floor, which is an absolute number."""
    first, second = make_batch(0), make_batch(1)

    def after(shift):
        loss = pooled(pool=pool, eta=ConstantEta(value=0.01))
        loss(first)
        similarity = (second.similarity + shift).requires_grad_()
        out = loss(make_batch(1, similarity=similarity))
        out.loss.backward()
        assert out.diagnostics["clamped"] == 0
        return out.per_anchor.detach(), similarity.grad

    plain, moved = after(0.0), after(0.2)
    assert torch.allclose(plain[0], moved[0], rtol=0, atol=1e-6)
    assert torch.allclose(plain[1], moved[1], rtol=0, atol=1e-6)
    # So there is no pull on the level of a sentence's scores.
    assert moved[1].sum(dim=0).abs().max() < 1e-6


def test_a_detached_floor_has_no_gradient_to_the_scale(make_batch):
    """Every anchor stands on the floor: eta .9, and the pair is the best of the batch."""
    similarity = -torch.ones(4, 4, dtype=torch.float64) + 2 * torch.eye(4, dtype=torch.float64)
    for floor, moves in (("live", True), ("detached", False)):
        scale = torch.tensor(5.0, dtype=torch.float64, requires_grad=True)
        logits = similarity.clone()
        batch = ContrastiveBatch(logits, scale, eta=torch.full((4,), 0.9, dtype=torch.float64))
        out = pooled(pool="pair", floor=floor)(batch)
        assert out.diagnostics["clamped"] == 1
        out.loss.backward()
        # s+ = scale * 1 moves with the scale in both; the floor itself only when it is live.
        expected = {True: -2.0, False: -1.0}[moves]
        share = torch.sigmoid(torch.tensor(math.log(3) - 5.0 - 5.0, dtype=torch.float64))
        assert scale.grad.item() == pytest.approx(float(expected * share), rel=1e-9)


VARIANTS = {
    "one pair": {"pool": "pair", "eta": {"kind": "table"}},
    "like sentences": {"threshold": 0.5, "eta": {"kind": "table", "factor": 0.5}},
}


@pytest.mark.parametrize("name", VARIANTS)
def test_autograd_agrees_with_finite_differences(name, make_batch, make_views):
    loss = build_objective(loss_settings({"kind": "debiased_pooled"} | VARIANTS[name], "test"))
    loss = loss.double()
    similarity = make_batch().similarity.clone().requires_grad_()
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)

    def value(s, g2):
        batch = make_batch(similarity=s)
        object.__setattr__(batch, "scale", g2)
        return loss(batch).per_anchor

    assert torch.autograd.gradcheck(value, (similarity, scale))
    views = make_views()

    def of_views(s):
        object.__setattr__(views, "similarity", s)
        return loss(views).per_anchor

    assert torch.autograd.gradcheck(of_views, (views.similarity.clone().requires_grad_(),))


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("scale", [1.0, 30.0, 100.0])
def test_loss_and_gradient_are_finite_at_every_scale(name, scale, make_batch):
    loss = build_objective(loss_settings({"kind": "debiased_pooled"} | VARIANTS[name], "test"))
    similarity = make_batch().similarity.clone().requires_grad_()
    batch = make_batch(scale=scale, similarity=similarity, eta=torch.full((8,), 0.99).double())
    loss(batch).loss.backward()
    assert torch.isfinite(similarity.grad).all()
