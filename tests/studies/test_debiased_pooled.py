"""The pooled same-class mean against loops over single pairs in float64, and limit cases."""

from __future__ import annotations

import math

import pytest
import torch

from medclip_debias.losses import (
    ContrastiveBatch,
    DebiasedContrastive,
    DebiasedSettings,
    TableEta,
)
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


def test_autograd_agrees_with_finite_differences(make_batch):
    loss = pooled(pool="text", threshold=0.5)
    similarity = make_batch().similarity.clone().requires_grad_()
    assert torch.autograd.gradcheck(
        lambda s: loss(make_batch(similarity=s)).per_anchor, (similarity,)
    )
