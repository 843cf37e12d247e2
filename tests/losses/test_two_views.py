"""The two-view forms: NT-Xent of a public library, and loops over single views."""

from __future__ import annotations

import math

import pytest
import torch

from medclip_debias.losses import (
    XCLR,
    InfoNCE,
    SupCon,
    TwoViewBatch,
    XCLRSettings,
)


def views(seed, images=7, dim=12):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(2, images, dim, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("temperature", [0.07, 0.5, 1.0])
def test_infonce_on_two_views_is_nt_xent(temperature):
    from pytorch_metric_learning.losses import NTXentLoss

    first, second = (x.requires_grad_() for x in views(0))
    ids = torch.arange(7).repeat(2)
    expected = NTXentLoss(temperature=temperature)(torch.cat([first, second]), ids)
    batch = TwoViewBatch.from_views(first, second, 1 / temperature)
    found = InfoNCE()(batch).loss
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    theirs = torch.autograd.grad(expected, (first, second))
    ours = torch.autograd.grad(found, (first, second))
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)


def test_supcon_on_two_views_is_the_librarys():
    from pytorch_metric_learning.losses import SupConLoss

    first, second = views(1)
    classes = torch.tensor([0, 0, 1, 1, 1, 2, 3])
    expected = SupConLoss(temperature=0.2)(torch.cat([first, second]), classes.repeat(2))
    labels = torch.nn.functional.one_hot(classes).double()
    batch = TwoViewBatch.from_views(first, second, 5.0, labels=labels)
    assert SupCon()(batch).loss.item() == pytest.approx(expected.item(), rel=1e-9)


def cosine(a, b):
    return (a @ b / (a.norm() * b.norm())).item()


def rows(first, second, scale):
    """Each view: its own number, its partner's, and its logits to every other view."""
    both = torch.cat([first, second])
    n = len(first)
    for i in range(2 * n):
        logits = {k: scale * cosine(both[i], both[k]) for k in range(2 * n) if k != i}
        yield i, (i + n) % (2 * n), logits


def test_xclr_on_two_views_tiles_the_graph_and_leaves_the_view_itself_out():
    first, second = views(4)
    g = torch.Generator().manual_seed(5)
    graph = torch.rand(7, 7, generator=g, dtype=torch.float64)
    graph = (graph + graph.T) / 2
    graph.fill_diagonal_(1)
    batch = TwoViewBatch.from_views(first, second, 6.0, text_similarity=graph)
    out = XCLR(XCLRSettings(target_temperature=0.1))(batch)
    for i, _, logits in rows(first, second, 6.0):
        weights = {k: math.exp(graph[i % 7, k % 7].item() / 0.1) for k in logits}
        z, q = sum(math.exp(s) for s in logits.values()), sum(weights.values())
        expected = -sum(w / q * (logits[k] - math.log(z)) for k, w in weights.items())
        assert out.per_anchor[i].item() == pytest.approx(expected, rel=1e-10)
