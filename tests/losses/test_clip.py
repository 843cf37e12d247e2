"""Losses against the published ones of open_clip and pytorch-metric-learning."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from medclip_debias.losses import ContrastiveBatch, TwoViewBatch, build_objective, loss_settings

pml = pytest.importorskip("pytorch_metric_learning.losses")


def objective(**content):
    return build_objective(loss_settings(content, "test")).double()


@pytest.fixture(scope="module")
def open_clip():
    """open_clip's ``loss.py`` alone: the package's own import needs all of its models."""
    package = importlib.util.find_spec("open_clip")
    path = Path(package.submodule_search_locations[0]) / "loss.py"
    spec = importlib.util.spec_from_file_location("open_clip_loss", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unit_vectors(seed, pairs=9, dim=16):
    g = torch.Generator().manual_seed(seed)
    vectors = F.normalize(torch.randn(2, pairs, dim, generator=g, dtype=torch.float64), dim=-1)
    return tuple(x.requires_grad_() for x in vectors)


def check_gradients(ours, theirs, *vectors):
    """Of two losses; ours normalises, which projects the gradient on the sphere: compare there."""
    slopes = (torch.autograd.grad(loss, vectors) for loss in (ours, theirs))
    for *pair, x in zip(*slopes, vectors, strict=True):
        tangents = (slope - (slope * x).sum(dim=-1, keepdim=True) * x for slope in pair)
        torch.testing.assert_close(*tangents, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("scale", [1.0, 14.0, 100.0])
@pytest.mark.parametrize("kind", ["clip", "biovil"])
def test_clip_is_open_clips_loss_with_its_gradients(open_clip, scale, kind):
    vectors = unit_vectors(0)
    expected = open_clip.ClipLoss()(*vectors, torch.tensor(scale).double())
    loss = objective(kind=kind)(ContrastiveBatch.from_embeddings(*vectors, scale)).loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-12)
    check_gradients(loss, expected, *vectors)


@pytest.mark.parametrize(("scale", "bias"), [(1.0, -10.0), (10.0, 3.0), (100.0, -2.0)])
def test_siglip_is_open_clips_loss_with_its_gradients(open_clip, scale, bias):
    vectors = unit_vectors(1)
    g2, b = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (scale, bias))
    expected = open_clip.SigLipLoss()(*vectors, g2, b)
    siglip = objective(kind="siglip", initial_bias=bias)
    loss = siglip(ContrastiveBatch.from_embeddings(*vectors, g2)).loss
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    theirs = torch.autograd.grad(expected, (g2, b), retain_graph=True)
    ours = torch.autograd.grad(loss, (g2, siglip.bias), retain_graph=True)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-12)
    check_gradients(loss, expected, *vectors)


@pytest.mark.parametrize("temperature", [0.07, 0.5, 1.0])
def test_infonce_on_two_views_is_nt_xent_with_its_gradients(temperature):
    views = unit_vectors(0, pairs=7)
    loss = objective(kind="infonce")(TwoViewBatch.from_views(*views, 1 / temperature)).loss
    expected = pml.NTXentLoss(temperature=temperature)(torch.cat(views), torch.arange(7).repeat(2))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    check_gradients(loss, expected, *views)


def test_supcon_on_two_views_is_the_librarys():
    views = unit_vectors(1, pairs=7)
    classes = torch.tensor([0, 0, 1, 1, 1, 2, 3])
    expected = pml.SupConLoss(temperature=0.2)(torch.cat(views), classes.repeat(2))
    batch = TwoViewBatch.from_views(*views, 5.0, labels=F.one_hot(classes).double())
    assert objective(kind="supcon")(batch).loss.item() == pytest.approx(expected.item(), rel=1e-9)
