"""Policies by text against loops over single pairs in float64."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from medclip_debias.losses import (
    RemoveByText,
    RemoveByTextSettings,
    ResampleByText,
    ResampleByTextSettings,
    ReweightByText,
    ReweightByTextSettings,
)
from medclip_debias.losses.anchors import text_anchors


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("draw", range(4))
def test_text_policies_weigh_by_the_most_similar_sentence(
    make_batch, draw, keep, both_sides, effective, pairs
):
    batch = make_batch(draw)
    remove = RemoveByText(RemoveByTextSettings(threshold=0.3, keep_mass=keep))
    reweight = ReweightByText(ReweightByTextSettings(beta=2.0, keep_mass=keep))
    for side, anchors in both_sides(batch):
        expected = {"remove": np.zeros(anchors.logits.shape), "reweight": None}
        expected["reweight"] = np.zeros(anchors.logits.shape)
        for j, c, _, _, said in pairs(side, anchors, batch):
            cosine = max(batch.text_similarity[j, n].item() for n in said)
            expected["remove"][j, c] = cosine <= 0.3
            expected["reweight"][j, c] = math.exp(-2 * cosine)
        for name, policy in (("remove", remove), ("reweight", reweight)):
            wanted = expected[name]
            if keep:
                total = wanted.sum(axis=1, keepdims=True)
                count = anchors.negatives.sum(dim=1, keepdim=True).numpy()
                wanted = wanted * count / np.where(total > 0, total, 1)
            found = effective(policy.apply_to(anchors, batch)).numpy()
            np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_resampling_draws_by_its_probabilities_and_depends_on_the_seed_alone(make_batch):
    batch = make_batch(0)
    anchors = text_anchors(batch)
    policy = ResampleByText(ResampleByTextSettings(share=0.2, beta=3.0))
    counts = torch.zeros(8, 6, dtype=torch.float64)
    draws = 4000
    for seed in range(draws):
        object.__setattr__(batch, "seed", seed)
        after = policy.apply_to(anchors, batch)
        assert (after.negatives.sum(dim=1) == 1).all()  # ceil(0.2 x 5)
        counts += after.negatives
    cosines = anchors.between_texts(batch.text_similarity, batch)
    expected = torch.softmax((-3 * cosines).masked_fill(~anchors.negatives, -torch.inf), dim=1)
    # Five standard errors of a share.
    error = 5 * (expected * (1 - expected) / draws).sqrt() + 1e-12
    assert ((counts / draws - expected).abs() <= error).all()
    again = policy.apply_to(anchors, batch)
    torch.testing.assert_close(again.weights, after.weights)
    torch.testing.assert_close(after.mass, anchors.mass)


def test_without_preference_resampling_is_uniform_and_all_is_all(make_batch):
    batch = make_batch(0)
    anchors = text_anchors(batch)
    everything = ResampleByText(ResampleByTextSettings(share=1)).apply_to(anchors, batch)
    assert torch.equal(everything.negatives, anchors.negatives)
    assert (everything.weights[anchors.negatives] == 1).all()
