"""Every aggregator against loops in float64, its bounds and limits, in chunks, under gradients."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.config import SimilaritySettings
from medclip_debias.models.similarity import Similarity, chunked_similarity, log_sum_exp

PLAIN = {"k": 4.0, "temperature": 3.0, "local_weight": 0.3}
REGIONS = {
    name: {"aggregator": name, **PLAIN} for name in ("lse_nl", "lse", "nl", "global", "max", "mean")
}
ATTENDING = {
    "attention": {"aggregator": "attention", "temperature": 3.0},
    "region": {"aggregator": "attention", "attention_value": "region", "temperature": 3.0},
    "cross_attention": {"aggregator": "cross_attention", "heads": 2, "layers": 2},
    "local_words": {"aggregator": "local_words", "temperature": 3.0, "k": 4.0},
}
NON_LOCAL = {
    f"{name} {kind}": {"aggregator": name, "non_local": kind, **PLAIN}
    for name, kind in (("lse_nl", "self_attention"), ("lse_nl", "mean"), ("nl", "mean"))
}
CHOICES = REGIONS | ATTENDING | NON_LOCAL


def made(name, images=3, regions=7, sentences=4, dim=6, **more):
    """A similarity with random weights, regions and sentences, all in float64."""
    torch.manual_seed(1)
    similarity = Similarity(SimilaritySettings(**CHOICES[name] | more), dim).double()
    for parameter in similarity.parameters():
        if parameter.ndim:
            parameter.data += 0.3 * torch.randn_like(parameter)
    x = F.normalize(torch.randn(images, regions, dim, dtype=torch.float64), dim=-1)
    shape = (sentences, 5, dim) if name == "local_words" else (sentences, dim)
    y = F.normalize(torch.randn(shape, dtype=torch.float64), dim=-1)
    if name == "local_words":  # of 1, 2, 3 ... words
        y = y * (torch.arange(5) < 1 + torch.arange(sentences)[:, None] % 5)[..., None]
    return similarity, x, y


def softmax(values):
    total = sum(math.exp(v) for v in values)
    return np.array([math.exp(v) / total for v in values])


def norm(v, layer):
    centred = v - v.mean()
    scaled = centred / math.sqrt((centred**2).mean() + layer.eps)
    return scaled * layer.weight.detach().numpy() + layer.bias.detach().numpy()


def linear(v, layer):
    return layer.weight.detach().numpy() @ v + layer.bias.detach().numpy()


def crossed(image, sentence, part):
    """Score and map of one image and sentence by loops over heads and regions."""
    regions = [norm(r, part.norm) for r in image]
    query = norm(sentence, part.norm)
    for layer in part.layers:
        q = linear(norm(query, layer.norm_attention), layer.query)
        keys = [linear(r, layer.key) for r in regions]
        values = [linear(r, layer.value) for r in regions]
        size = len(q) // layer.heads
        mixed, maps = [], []
        for head in range(layer.heads):
            s = slice(head * size, (head + 1) * size)
            a = softmax([np.dot(q[s], key[s]) / math.sqrt(size) for key in keys])
            maps.append(a)
            mixed.append(sum(w * v[s] for w, v in zip(a, values, strict=True)))
        query = query + linear(np.concatenate(mixed), layer.out)
        hidden = np.maximum(linear(norm(query, layer.norm_feed), layer.feed[0]), 0)
        query = query + linear(hidden, layer.feed[2])
    hidden = np.maximum(linear(norm(query, part.norm), part.head[0]), 0)
    return math.tanh(linear(hidden, part.head[2])[0]), np.mean(maps, axis=0)


def by_words(image, sentence):
    """GLoRIA's score and map of one image and the words of a sentence."""
    cosines, spread = [], []
    for word in (w for w in sentence if np.abs(w).sum()):
        a = softmax([3.0 * np.dot(word, r) for r in image])
        context = a @ image
        cosines.append(np.dot(context, word) / np.linalg.norm(context))
        spread.append(a)
    score = math.log(np.mean([math.exp(4.0 * c) for c in cosines])) / 4.0
    return score, np.mean(spread, axis=0)


def by_loops(name, similarity, image, sentence):
    """docs/methods.md, one image and sentence: score and map."""
    if name == "cross_attention":
        return crossed(image, sentence, similarity.aggregator)
    if name == "local_words":
        return by_words(image, sentence)
    s = similarity.settings
    h = np.array([np.dot(r, sentence) for r in image])
    mixed = softmax(s.temperature * h) @ image
    local = math.log(sum(math.exp(s.k * v) for v in h) / len(h)) / s.k
    weights = softmax([s.temperature * np.dot(r, image[int(np.argmax(h))]) for r in image])
    mean = np.mean(image, axis=0)
    score = {
        "lse": local,
        "nl": weights @ h,
        "lse_nl": s.local_weight * local + (1 - s.local_weight) * (weights @ h),
        "max": max(h),
        "mean": np.mean(h),
        "global": np.dot(mean / np.linalg.norm(mean), sentence),
        "attention": softmax(s.temperature * h) @ h,
        "region": np.dot(mixed, sentence) / np.linalg.norm(mixed),
    }[name]
    return score, h


@pytest.mark.parametrize("name", REGIONS | ATTENDING)
@torch.no_grad()
def test_scores_and_maps_equal_a_loop(name):
    similarity, x, y = made(name)
    pairs = [[by_loops(name, similarity, i, s) for s in y.numpy()] for i in x.numpy()]
    scores, maps = (np.array([[pair[k] for pair in row] for row in pairs]) for k in (0, 1))
    np.testing.assert_allclose(similarity(x, y), scores, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(similarity.maps(x, y), maps, rtol=1e-6, atol=1e-6)
    assert np.abs(scores).max() <= 1
    if similarity.map_kind == "attention":
        np.testing.assert_allclose(maps.sum(axis=-1), 1)


@given(seed=st.integers(0, 1000), k=st.floats(0.01, 200), regions=st.integers(1, 9))
def test_the_local_stream_lies_between_the_mean_and_the_maximum(seed, k, regions):
    h = torch.rand(3, 4, regions, generator=torch.Generator().manual_seed(seed)).double() * 2 - 1
    local = log_sum_exp(h, k)
    assert (local <= h.amax(-1) + 1e-9).all()
    assert (local >= h.mean(-1) - 1e-9).all()
    assert (local >= h.amax(-1) - math.log(regions) / k - 1e-9).all()


@pytest.mark.parametrize("name", NON_LOCAL)
@torch.no_grad()
def test_with_one_region_every_aggregator_is_its_cosine(name):
    torch.manual_seed(0)
    similarity = Similarity(SimilaritySettings(**CHOICES[name]), 6).double()
    _, x, y = made(name, regions=1)
    cosines = torch.einsum("bnd,td->bt", x, y)
    torch.testing.assert_close(similarity(x, y), cosines, atol=1e-9, rtol=0)


def test_padding_of_words_changes_nothing():
    similarity, x, y = made("local_words")
    assert torch.equal(similarity(x, y), similarity(x, F.pad(y, (0, 0, 0, 3))))
    torch.testing.assert_close(similarity(x, y[:1]), similarity(x, y)[:, :1])


@pytest.mark.parametrize("name", CHOICES)
def test_in_chunks_the_result_and_the_gradients_are_those_of_the_whole(name):
    results = []
    for size in (0, 2):
        similarity, x, y = made(name, images=5, chunk=size)
        scores = similarity(x.requires_grad_(), y.requires_grad_())
        # Through a transpose, as text anchors do.
        (scores.T @ torch.arange(5.0, dtype=torch.float64)).pow(3).sum().backward()
        weights = [p.grad for p in similarity.parameters() if p.grad is not None]
        results.append([scores.detach(), x.grad, y.grad, *weights])
    for whole, parts in zip(*results, strict=True):
        torch.testing.assert_close(parts, whole, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize(("weight", "temperature"), [(0.0, 3.0), (0.4, None), (0.4, 3.0)])
def test_the_gradient_written_out_is_the_numerical_one(weight, temperature):
    _, x, y = made("lse_nl", images=3, regions=4, sentences=3, dim=3)
    options = {"chunk": 2, "weight": weight, "k": 4.0, "temperature": temperature}
    inputs = x.requires_grad_(), y.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: chunked_similarity(a, b, **options), inputs)


@pytest.mark.parametrize("name", ["lse_nl", *ATTENDING])
def test_autocast_does_not_round_and_large_batches_are_chunked_by_themselves(name):
    similarity, x, y = made(name)
    single = similarity.float()
    exact = single(x.float(), y.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = single(x.float(), y.float())
    assert rounded.dtype == torch.float32
    assert torch.equal(rounded, exact)
    large = torch.zeros(1024, 225, 6), torch.zeros(1024, *y.shape[1:])
    assert 1 <= similarity._chunk(*large) < 1024
    assert similarity._chunk(x, y) == 0


def test_very_sharp_local_streams_stay_finite_in_chunks():
    similarity, x, y = made("lse_nl", k=1000.0, chunk=1)
    inputs = x.float().requires_grad_(), y.float().requires_grad_()
    scores = similarity.float()(*inputs)
    scores.sum().backward()
    assert torch.isfinite(scores).all()
    assert all(torch.isfinite(part.grad).all() for part in inputs)
