"""Policies by labels and text: what `test_reference` leaves out."""

from __future__ import annotations

import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.losses import ContrastiveBatch
from medclip_debias.losses.objective import POLICIES
from medclip_debias.losses.pairs import between_texts


def policy(kind, **settings):
    return POLICIES.build(POLICIES.settings({"kind": kind} | settings, "test"))


def test_unlabelled_studies_are_not_alike_and_a_label_that_the_data_lacks_is_named(make_batch):
    blank = torch.tensor([[torch.nan, torch.nan], [torch.nan, torch.nan], [0, torch.nan]])
    batch = ContrastiveBatch(torch.zeros(3, 3), 1.0, labels=blank)
    (anchors,) = batch.anchors("text_to_image")
    assert policy("remove_by_label", match="equal").apply_to(anchors, batch).negatives.sum() == 6
    batch = make_batch()
    with pytest.raises(UserError, match="'Hernia'"):
        policy("remove_by_label", labels=["Hernia"])(batch.anchors("text_to_image")[0], batch)


def test_resampling_draws_by_its_probabilities_and_depends_on_the_seed_alone(make_batch):
    batch = make_batch(0)
    (anchors,) = batch.anchors("text_to_image")
    resample = policy("resample_by_text", share=0.2, beta=3.0)
    counts, draws = torch.zeros(8, 6, dtype=torch.float64), 500
    for seed in range(draws):
        batch.fields["seed"] = seed
        after = resample.apply_to(anchors, batch)
        counts += after.negatives
        assert (after.negatives.sum(dim=1) == 1).all()  # ceil(0.2 x 5)
    cosines = between_texts(batch["text_similarity"], anchors, batch)
    expected = torch.softmax((-3 * cosines).masked_fill(~anchors.negatives, -torch.inf), dim=1)
    # Five standard errors of a share.
    error = 5 * (expected * (1 - expected) / draws).sqrt() + 1e-12
    assert ((counts / draws - expected).abs() <= error).all()
    torch.testing.assert_close(resample.apply_to(anchors, batch).weights, after.weights)
    torch.testing.assert_close(after.mass, anchors.mass)
    everything = policy("resample_by_text", share=1).apply_to(anchors, batch)
    assert torch.equal(everything.negatives, anchors.negatives)
