"""Anchors: what a candidate image is known by, and the weights in the logits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias.losses import ContrastiveBatch, MaskIdenticalText
from medclip_debias.losses.anchors import masked_logsumexp, text_anchors


def test_an_image_is_known_by_every_sentence_of_its_study(several_images):
    batch = several_images
    (anchors,) = batch.anchors("text_to_image")
    matrix = torch.arange(1.0, 10.0, dtype=torch.float64).view(3, 3) / 10
    expected = [[0.2, 0.2, 0.2, 0.3], [0.5, 0.5, 0.5, 0.6], [0.8, 0.8, 0.8, 0.9]]
    assert anchors.between_texts(matrix, batch).tolist() == expected
    # Sentence 2 is literally what the report of images 0 to 2 says, whichever one owns it.
    kept = MaskIdenticalText().apply_to(anchors, batch)
    assert kept.negatives[2].tolist() == [False] * 4


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 2**20), size=st.integers(2, 9))
def test_weighted_logits_sum_to_the_weighted_exponentials(seed, size):
    g = torch.Generator().manual_seed(seed)
    similarity = torch.rand(size, size, generator=g, dtype=torch.float64)
    anchors = text_anchors(ContrastiveBatch(similarity, torch.tensor(5.0).double()))
    weights = torch.rand(size, size, generator=g, dtype=torch.float64) * 3
    anchors = replace(anchors, weights=weights)
    found = masked_logsumexp(anchors.weighted_logits(), anchors.negatives)
    for j in range(size):
        expected = sum(
            weights[j, n].item() * math.exp(5 * (similarity[n, j] - similarity[j, j]).item())
            for n in range(size)
            if n != j
        )
        assert math.exp(found[j].item()) == pytest.approx(expected, rel=1e-12)
        # A candidate that is no negative keeps its logit.
        assert anchors.weighted_logits()[j, j].item() == 0
