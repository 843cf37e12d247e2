"""The core: weights, many positives and the order of policies, by loops in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from medclip_debias.losses import (
    ContrastiveBatch,
    DebiasedContrastive,
    DebiasedSettings,
    FalseNegativeCancellation,
    FNCSettings,
    NegativePolicy,
    PolicySettings,
    TableEta,
)
from medclip_debias.losses.anchors import text_anchors


class Given(NegativePolicy[PolicySettings]):
    """Weights that the test gives; without a kind, so that it is not registered."""

    def forward(self, anchors, batch):
        return self.weights


def weighted_loss(logits, scale, own, positives, weights, eta):
    """Equations 6 to 8 with weights and M positives, as printed, one anchor."""
    n = sum(weights)
    neg = sum(w * math.exp(s) for w, s in zip(weights, logits, strict=True))
    v = sum(math.exp(logits[m]) for m in positives) / len(positives)
    pos = math.exp(logits[own])
    if n == 0:
        return 0.0
    ng = max((neg - n * eta * v) / (1 - eta), n * math.exp(-scale))
    return -math.log(pos / (pos + ng))


@pytest.mark.parametrize("positives", ["pair", "study"])
@pytest.mark.parametrize("side", ["text_to_image", "image_to_text"])
@pytest.mark.parametrize("draw", range(4))
def test_weighted_negatives_and_many_positives_are_the_printed_formula(
    make_batch, positives, side, draw
):
    batch = make_batch(draw)
    columns = 6 if side == "text_to_image" else 8
    g = torch.Generator().manual_seed(draw)
    weights = torch.rand(8, columns, generator=g, dtype=torch.float64) * 3
    weights[weights < 0.7] = 0
    weights[5] = 0
    objective = DebiasedContrastive(
        DebiasedSettings(eta=TableEta(), direction=side, positives=positives)
    )
    policy = Given(PolicySettings())
    policy.weights = weights
    objective.policies.append(policy)
    out = objective(batch)
    owners, studies = batch.owners.tolist(), batch.sample_ids.tolist()
    for j, owner in enumerate(owners):
        if side == "text_to_image":
            logits = [3 * batch.similarity[i, j].item() for i in range(6)]
            of, own = list(range(6)), owner
        else:
            logits = [3 * batch.similarity[owner, n].item() for n in range(8)]
            of, own = owners, j
        mine = [c for c in range(columns) if studies[of[c]] == studies[owner]]
        same = mine if positives == "study" else [own]
        excluded = set(same) | {c for c in range(columns) if of[c] == owner}
        row = [0.0 if c in excluded else weights[j, c].item() for c in range(columns)]
        expected = weighted_loss(logits, 3.0, own, same, row, batch.eta[j].item())
        assert out.per_anchor[j].item() == pytest.approx(expected, rel=1e-9, abs=1e-13)
    assert out.per_anchor[5] == 0


def test_one_positive_of_the_study_is_the_plain_loss(make_batch):
    batch = ContrastiveBatch(
        make_batch().similarity[:, 2:8],
        torch.tensor(14.0).double(),
        eta=torch.full((6,), 0.2).double(),
        sample_ids=torch.arange(6),
    )
    one = DebiasedContrastive(DebiasedSettings(eta=TableEta()))(batch)
    many = DebiasedContrastive(DebiasedSettings(eta=TableEta(), positives="study"))(batch)
    torch.testing.assert_close(one.per_anchor, many.per_anchor, rtol=1e-12, atol=1e-14)


def test_each_policy_sees_what_the_one_before_has_left(make_batch):
    batch = make_batch(0)
    anchors = text_anchors(batch)
    top = FalseNegativeCancellation(FNCSettings(alpha=1e-9, keep_mass=False))
    once = top.apply_to(anchors, batch)
    twice = top.apply_to(once, batch)
    for j in range(8):
        order = anchors.logits[j].masked_fill(~anchors.negatives[j], -torch.inf).argsort()
        gone = set(np.flatnonzero(anchors.negatives[j] & ~twice.negatives[j]).tolist())
        assert gone == set(order[-2:].tolist())
    assert (twice.mass == anchors.mass - 2).all()


def test_no_policy_carries_gradient(make_batch):
    similarity = make_batch().similarity.clone().requires_grad_()
    batch = make_batch(similarity=similarity)
    after = FalseNegativeCancellation().apply_to(text_anchors(batch), batch)
    assert not after.weights.requires_grad


def test_a_policy_does_not_spend_its_removals_on_further_positives(several_images):
    batch = several_images
    fnc = FNCSettings(alpha=0.01, keep_mass=False)
    settings = DebiasedSettings(eta=TableEta(), positives="study", negatives=(fnc,))
    batch = replace(batch, eta=torch.zeros(3, dtype=torch.float64))
    (anchors,), _ = DebiasedContrastive(settings).anchors(batch)
    # The most similar other image of sentence 0 is of its own study; the only negative goes.
    assert not anchors.negatives[0].any()
    # Of sentence 2 the three images of the other study are negatives: the most similar goes.
    assert anchors.negatives[2].tolist() == [True, True, False, False]
