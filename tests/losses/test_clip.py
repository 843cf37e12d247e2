"""CLIP, BioViL and SigLIP against open_clip's published losses, and SigLIP's own formula."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from medclip_debias.losses import (
    CLIP,
    BioViL,
    ContrastiveBatch,
    MaskedLMSettings,
    SigLIP,
    SigLIPSettings,
)
from medclip_debias.losses.biovil import BioViLSettings


@pytest.fixture(scope="module")
def published():
    """open_clip's ``loss.py`` alone: the package's own import needs all of its models."""
    found = importlib.util.find_spec("open_clip")
    assert found is not None
    path = Path(found.submodule_search_locations[0]) / "loss.py"
    spec = importlib.util.spec_from_file_location("open_clip_loss", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def embeddings(seed, pairs=9, dim=16):
    g = torch.Generator().manual_seed(seed)
    images, sentences = torch.randn(2, pairs, dim, generator=g, dtype=torch.float64)
    return F.normalize(images, dim=-1), F.normalize(sentences, dim=-1)


def gradients(value, *inputs):
    return torch.autograd.grad(value, inputs)


@pytest.mark.parametrize("scale", [1.0, 14.0, 100.0])
@pytest.mark.parametrize("loss", [CLIP, BioViL])
def test_clip_is_open_clips_loss_with_its_gradients(published, scale, loss):
    images, sentences = (x.requires_grad_() for x in embeddings(0))
    g2 = torch.tensor(scale, dtype=torch.float64, requires_grad=True)
    expected = published.ClipLoss()(images, sentences, g2)
    found = loss()(ContrastiveBatch.from_embeddings(images, sentences, g2)).loss
    assert found.item() == pytest.approx(expected.item(), rel=1e-12)
    # from_embeddings normalises, which projects the gradient on the sphere; compare there.
    for a, b, x in zip(
        gradients(found, images, sentences),
        gradients(expected, images, sentences),
        (images, sentences),
        strict=True,
    ):
        tangent = b - (b * x).sum(dim=-1, keepdim=True) * x
        torch.testing.assert_close(a, tangent, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("bias", [-10.0, -2.0, 3.0])
def test_siglip_is_open_clips_loss_with_its_gradients(published, scale, bias):
    images, sentences = embeddings(1)
    g2 = torch.tensor(scale, dtype=torch.float64, requires_grad=True)
    b = torch.tensor(bias, dtype=torch.float64, requires_grad=True)
    expected = published.SigLipLoss()(images, sentences, g2, b)
    loss = SigLIP(SigLIPSettings(initial_bias=bias)).double()
    found = loss(ContrastiveBatch.from_embeddings(images, sentences, g2)).loss
    assert found.item() == pytest.approx(expected.item(), rel=1e-9)
    theirs = gradients(expected, g2, b)
    ours = gradients(found, g2, loss.bias)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-12)


def test_siglip_is_a_sum_over_pairs_in_float64(make_batch):
    batch = make_batch(2)
    settings = SigLIPSettings(
        initial_bias=-1.5, negatives=({"kind": "reweight_by_text", "beta": 1.0},)
    )
    loss = SigLIP(settings).double()
    out = loss(batch)
    owners = batch.owners.tolist()
    for j, owner in enumerate(owners):
        cosines = {
            i: max(batch["text_similarity"][j, n].item() for n, o in enumerate(owners) if o == i)
            for i in range(6)
            if i != owner
        }
        total = sum(math.exp(-c) for c in cosines.values())
        expected = math.log1p(math.exp(-(3 * batch.similarity[owner, j].item() - 1.5)))
        for i, cosine in cosines.items():
            weight = 5 * math.exp(-cosine) / total
            s = 3 * batch.similarity[i, j].item() - 1.5
            expected += weight * math.log1p(math.exp(s))
        assert out.per_anchor[j].item() == pytest.approx(expected, rel=1e-10)


def test_the_masked_language_model_term_is_handed_to_the_training_loop():
    settings = BioViLSettings(masked_lm=MaskedLMSettings(weight=0.3, mask_share=0.2))
    assert BioViL(settings).masked_lm == MaskedLMSettings(weight=0.3, mask_share=0.2)
    assert CLIP().masked_lm is None
