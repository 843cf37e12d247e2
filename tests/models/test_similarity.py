"""LSE+NL against a brute-force loop, its bounds, and its limits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias.config import SimilaritySettings
from medclip_debias.models.similarity import Similarity, chunked_similarity, log_sum_exp


def vectors(seed, images=3, regions=7, sentences=4, dim=5):
    g = torch.Generator().manual_seed(seed)
    x = F.normalize(torch.randn(images, regions, dim, generator=g, dtype=torch.float64), dim=-1)
    y = F.normalize(torch.randn(sentences, dim, generator=g, dtype=torch.float64), dim=-1)
    return x, y


def brute_force(x, y, s):
    """docs/methods.md, one number at a time."""
    out = np.zeros((len(x), len(y)))
    for i, regions in enumerate(x):
        for j, sentence in enumerate(y):
            h = [float(np.dot(r, sentence)) for r in regions]
            local = math.log(sum(math.exp(s.k * v) for v in h) / len(h)) / s.k
            c = int(np.argmax(h))
            weights = [math.exp(s.temperature * float(np.dot(r, regions[c]))) for r in regions]
            non_local = sum(w * v for w, v in zip(weights, h, strict=True)) / sum(weights)
            mean = np.mean(regions, axis=0)
            pooled = float(np.dot(mean / np.linalg.norm(mean), sentence))
            out[i, j] = {
                "lse": local,
                "nl": non_local,
                "lse_nl": s.local_weight * local + (1 - s.local_weight) * non_local,
                "max": max(h),
                "mean": float(np.mean(h)),
                "global": pooled,
            }[s.aggregator]
    return out


@pytest.mark.parametrize("aggregator", ["lse_nl", "lse", "nl", "global", "max", "mean"])
def test_equals_a_loop_over_regions(aggregator):
    options = SimilaritySettings(aggregator=aggregator, k=4.0, temperature=3.0, local_weight=0.3)
    x, y = vectors(0)
    result = Similarity(options, dim=5)(x, y)
    np.testing.assert_allclose(
        result.detach().numpy(), brute_force(x.numpy(), y.numpy(), options), rtol=1e-12, atol=1e-12
    )


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 1000), k=st.floats(0.01, 200), regions=st.integers(1, 9))
def test_the_local_stream_lies_between_the_mean_and_the_maximum(seed, k, regions):
    x, y = vectors(seed, regions=regions)
    h = torch.einsum("bnd,td->btn", x, y)
    local = log_sum_exp(h, k)
    assert (local <= h.amax(-1) + 1e-9).all()
    assert (local >= h.mean(-1) - 1e-9).all()
    assert (local >= h.amax(-1) - math.log(regions) / k - 1e-9).all()


@pytest.mark.parametrize("aggregator", ["lse_nl", "nl"])
@pytest.mark.parametrize("non_local", ["critical_region", "self_attention", "mean"])
def test_every_option_stays_within_the_cosine_range(aggregator, non_local):
    options = SimilaritySettings(aggregator=aggregator, non_local=non_local)
    x, y = vectors(2, regions=1)
    result = Similarity(options, dim=5).double()(x, y)
    # With one region every aggregator is its cosine.
    torch.testing.assert_close(result, torch.einsum("bnd,td->bt", x, y), atol=1e-9, rtol=0)
    many = Similarity(options, dim=5).double()(*vectors(3, regions=20))
    assert many.abs().max() <= 1


def test_the_scale_starts_at_its_setting_and_stays_within_1_and_100():
    similarity = Similarity(SimilaritySettings(), dim=5)
    assert similarity.scale.item() == pytest.approx(14.0, rel=1e-6)
    similarity.log_scale.data.fill_(20.0)
    assert similarity.scale.item() == 100
    similarity.log_scale.data.fill_(-3.0)
    assert similarity.scale.item() == 1


def test_autocast_does_not_round_the_similarity():
    x, y = vectors(4, regions=30, dim=16)
    similarity = Similarity(SimilaritySettings(), dim=16)
    exact = similarity(x.float(), y.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        island = similarity(x.float(), y.float())
    assert island.dtype == torch.float32
    assert torch.equal(exact, island)


CHOICES = [
    ("lse_nl", "critical_region"),
    ("lse_nl", "self_attention"),
    ("lse_nl", "mean"),
    ("lse", "critical_region"),
    ("nl", "critical_region"),
    ("nl", "mean"),
    ("max", "critical_region"),
    ("mean", "critical_region"),
    ("global", "critical_region"),
]


@pytest.mark.parametrize("chunk", [1, 2, 5, 100])
@pytest.mark.parametrize(("aggregator", "non_local"), CHOICES)
def test_in_chunks_the_result_and_the_gradients_are_those_of_the_whole(
    aggregator, non_local, chunk
):
    x, y = vectors(5, images=5)
    weights = torch.arange(5.0, dtype=torch.float64)
    results = []
    for size in (0, chunk):
        torch.manual_seed(0)
        options = SimilaritySettings(
            aggregator=aggregator, non_local=non_local, k=4.0, local_weight=0.3, chunk=size
        )
        regions, sentences = x.clone().requires_grad_(), y.clone().requires_grad_()
        result = Similarity(options, dim=5).double()(regions, sentences)
        # Through a transpose, as text anchors do.
        (result.T @ weights).pow(3).sum().backward()
        results.append((result.detach(), regions.grad, sentences.grad))
    for whole, parts in zip(*results, strict=True):
        torch.testing.assert_close(parts, whole, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("temperature", [None, 3.0])
@pytest.mark.parametrize("weight", [0.0, 0.4, 1.0])
def test_the_gradient_in_chunks_is_the_numerical_one(temperature, weight):
    x, y = vectors(6, images=3, regions=4, sentences=3, dim=3)
    inputs = x.requires_grad_(), y.requires_grad_()

    def chunked(regions, sentences):
        return chunked_similarity(
            regions, sentences, chunk=2, weight=weight, k=4.0, temperature=temperature
        )

    assert torch.autograd.gradcheck(chunked, inputs)


def test_very_sharp_local_streams_stay_finite_in_chunks():
    x, y = vectors(8)
    inputs = x.float().requires_grad_(), y.float().requires_grad_()
    result = Similarity(SimilaritySettings(k=1000.0, chunk=1), dim=5)(*inputs)
    result.sum().backward()
    assert torch.isfinite(result).all()
    assert all(torch.isfinite(part.grad).all() for part in inputs)


def test_large_batches_are_chunked_by_themselves():
    similarity = Similarity(SimilaritySettings(), dim=2)
    regions, sentences = torch.zeros(1024, 225, 2), torch.zeros(1024, 2)
    assert 1 <= similarity._chunk(regions, sentences) <= 64
    assert similarity._chunk(regions[:64], sentences[:64]) == 0
