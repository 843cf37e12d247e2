"""Weights by evidence, pair by pair."""

from __future__ import annotations

import torch

from medclip_debias.losses.anchors import image_anchors, text_anchors
from medclip_debias.losses.evidence.claims import Claims
from medclip_debias.losses.policies.weigh_by_evidence import (
    WeighByEvidence,
    WeighByEvidenceSettings,
)


def test_a_weight_lies_between_that_of_unknown_and_of_its_kind(make_batch):
    batch = make_batch(4)
    settings = WeighByEvidenceSettings(agree=0.2, unknown=0.6, contradict=3.0)
    for anchors in (text_anchors(batch), image_anchors(batch)):
        evidence = Claims()(anchors, batch)
        weights = WeighByEvidence(settings).apply_to(anchors, batch).weights
        for j, c in anchors.negatives.nonzero().tolist():
            e = float(evidence[j, c])
            expected = 0.6 + max(e, 0) * (0.2 - 0.6) + max(-e, 0) * (3.0 - 0.6)
            assert abs(float(weights[j, c]) - expected) < 1e-6


def test_the_defaults_remove_what_fully_agrees_and_nothing_else(make_batch):
    full = torch.tensor([[100, -100, 0]]).repeat(6, 1).to(torch.int8)
    batch = make_batch(stated=full)
    (anchors,) = batch.anchors("text_to_image")
    evidence = Claims()(anchors, batch)
    kept = WeighByEvidence().apply_to(anchors, batch).negatives
    assert torch.equal(kept, anchors.negatives & (evidence < 1))


def test_a_margin_is_added_to_contradicting_pairs_alone(make_batch):
    batch = make_batch(5)
    (anchors,) = batch.anchors("text_to_image")
    evidence = Claims()(anchors, batch)
    after = WeighByEvidence(WeighByEvidenceSettings(margin=0.2)).apply_to(anchors, batch)
    expected = anchors.logits + batch.scale * 0.2 * (-evidence).clamp(min=0)
    assert torch.equal(after.logits, expected)
    assert torch.equal(after.positive, anchors.positive)
