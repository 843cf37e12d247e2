"""X-CLR and SupCon against loops in float64, and the limits that tie them to each other."""

from __future__ import annotations

import math

import pytest
import torch

from medclip_debias.losses import (
    CLIP,
    XCLR,
    ContrastiveBatch,
    SupCon,
    SupConSettings,
    TwoViewBatch,
    XCLRSettings,
)


def cross_entropy(logits, weights):
    """Of the softmax over the columns that have a weight to the weights brought to the sum 1."""
    z, total = sum(math.exp(logits[k]) for k in weights), sum(weights.values())
    return -sum(w / total * math.log(math.exp(logits[k]) / z) for k, w in weights.items())


def test_xclr_on_two_views_tiles_the_graph_and_leaves_the_view_itself_out():
    g = torch.Generator().manual_seed(4)
    first, second = torch.randn(2, 7, 12, generator=g, dtype=torch.float64)
    graph = torch.rand(7, 7, generator=g, dtype=torch.float64)
    batch = TwoViewBatch.from_views(first, second, 6.0, text_similarity=graph)
    losses = XCLR(XCLRSettings(target_temperature=0.1))(batch).per_anchor
    for i, logits in enumerate((6.0 * batch.similarity).tolist()):
        weights = {k: math.exp(graph[i % 7, k % 7].item() / 0.1) for k in range(14) if k != i}
        assert losses[i].item() == pytest.approx(cross_entropy(logits, weights), rel=1e-10)


def captions(ids):
    """Pairs whose captions ``ids`` are alike exactly where equal."""
    g, ids = torch.Generator().manual_seed(0), torch.tensor(ids)
    similarity = torch.rand(len(ids), len(ids), generator=g, dtype=torch.float64) * 2 - 1
    cosines = torch.where(ids[:, None] == ids[None, :], 1.0, 0.6).double()
    return ContrastiveBatch(similarity, 14.0, text_similarity=cosines, text_ids=ids)


def test_as_the_target_temperature_falls_xclr_becomes_supcon_and_on_unique_captions_clip():
    batch, unique = captions([0, 0, 1, 2, 2, 2, 3]), captions(range(7))
    supcon = SupCon(SupConSettings(match="text"))
    errors = []
    for temperature in (0.2, 0.1, 0.05, 0.01):
        xclr = XCLR(XCLRSettings(target_temperature=temperature))
        errors.append((xclr(batch).per_anchor - supcon(batch).per_anchor).abs().max().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-12
    for loss in (xclr, supcon):
        expected = CLIP()(unique).per_anchor
        torch.testing.assert_close(loss(unique).per_anchor, expected, rtol=1e-12, atol=1e-12)
