"""Attending aggregators against loops in float64, in chunks, under gradient checks, and in use."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from medclip_debias.config import ModelSettings, SimilaritySettings
from medclip_debias.models.similarity import Similarity

CHOICES = {
    "similarity": {"aggregator": "attention", "temperature": 3.0},
    "region": {"aggregator": "attention", "attention_value": "region", "temperature": 3.0},
    "cross_attention": {"aggregator": "cross_attention", "heads": 2, "layers": 2},
    "local_words": {"aggregator": "local_words", "temperature": 3.0, "k": 4.0},
}
every = pytest.mark.parametrize("name", CHOICES)


def made(name, images=3, regions=7, sentences=4, dim=6, chunk=0):
    """An aggregator with random weights, regions and sentences, all in float64."""
    torch.manual_seed(1)
    settings = SimilaritySettings(**CHOICES[name], chunk=chunk)
    similarity = Similarity(settings, dim).double()
    for parameter in similarity.parameters():
        if parameter.ndim:
            parameter.data += 0.3 * torch.randn_like(parameter)
    x = F.normalize(torch.randn(images, regions, dim, dtype=torch.float64), dim=-1)
    shape = (sentences, 5, dim) if name == "local_words" else (sentences, dim)
    y = F.normalize(torch.randn(shape, dtype=torch.float64), dim=-1)
    if name == "local_words":  # of 1, 2, 3 ... words
        there = torch.arange(5) < 1 + torch.arange(sentences)[:, None] % 5
        y = y * there[..., None]
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


def by_loops(name, similarity, x, y):
    """docs/methods.md, one image and sentence at a time: scores and maps."""
    scores = np.zeros((len(x), len(y)))
    maps = np.zeros((len(x), len(y), x.shape[1]))
    for i, image in enumerate(x.numpy()):
        for j, sentence in enumerate(y.numpy()):
            if name == "cross_attention":
                scores[i, j], maps[i, j] = crossed(image, sentence, similarity.aggregator)
            elif name == "local_words":
                words = [w for w in sentence if np.abs(w).sum()]
                found, spread = [], []
                for word in words:
                    a = softmax([3.0 * np.dot(word, r) for r in image])
                    context = a @ image
                    found.append(np.dot(context, word) / np.linalg.norm(context))
                    spread.append(a)
                scores[i, j] = math.log(np.mean([math.exp(4.0 * c) for c in found])) / 4.0
                maps[i, j] = np.mean(spread, axis=0)
            else:
                h = image @ sentence
                a = softmax(3.0 * h)
                mixed = a @ image
                cosine = np.dot(mixed, sentence) / np.linalg.norm(mixed)
                scores[i, j] = a @ h if name == "similarity" else cosine
                maps[i, j] = h
    return scores, maps


@every
def test_scores_and_maps_equal_a_loop(name):
    similarity, x, y = made(name)
    scores, maps = by_loops(name, similarity, x, y)
    with torch.no_grad():
        np.testing.assert_allclose(similarity(x, y), scores, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(similarity.maps(x, y), maps, rtol=1e-6, atol=1e-6)
    assert np.abs(scores).max() <= 1
    if similarity.map_kind == "attention":
        np.testing.assert_allclose(maps.sum(axis=-1), 1)


@every
@pytest.mark.parametrize("chunk", [1, 2, 100])
def test_in_chunks_scores_and_gradients_are_those_of_the_whole(name, chunk):
    results = []
    for size in (0, chunk):
        similarity, x, y = made(name, images=5, chunk=size)
        inputs = x.requires_grad_(), y.requires_grad_()
        scores = similarity(*inputs)
        (scores.T @ torch.arange(5.0, dtype=torch.float64)).pow(3).sum().backward()
        weights = [p.grad for p in similarity.parameters() if p.grad is not None]
        results.append([scores.detach(), x.grad, y.grad, *weights])
    assert len(results[0]) >= 4
    for whole, parts in zip(*results, strict=True):
        torch.testing.assert_close(parts, whole, atol=1e-12, rtol=1e-10)


@every
@pytest.mark.parametrize("chunk", [0, 1])
def test_the_gradient_is_the_numerical_one(name, chunk):
    similarity, x, y = made(name, images=2, regions=2, sentences=2, dim=2, chunk=chunk)
    words = y.abs().sum(dim=-1, keepdim=True) > 0  # padding stays zero
    inputs = x.requires_grad_(), y.requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: similarity(a, b * words), inputs)
    weights = {n: p.detach().clone() for n, p in similarity.named_parameters()}
    weights.pop("log_scale")
    names = list(weights)

    def of_weights(*values):
        given = dict(zip(names, values, strict=True))
        return torch.func.functional_call(similarity, given, (x.detach(), y.detach()))

    leaves = [value.requires_grad_() for value in weights.values()]
    if not chunk:
        assert torch.autograd.gradcheck(of_weights, leaves)


@pytest.mark.parametrize("name", ["similarity", "region"])
def test_attention_tends_to_the_best_region(name):
    similarity, x, y = made(name)
    h = torch.einsum("bnd,td->btn", x, y)
    sharp = similarity.aggregator
    sharp.log_temperature.data.fill_(math.log(100.0))
    far = similarity(x, y)
    torch.testing.assert_close(far, h.amax(-1), atol=0.05, rtol=0)
    # With one region it is that region's cosine.
    torch.testing.assert_close(similarity(x[:, :1], y), h[..., 0])
    sharp.log_temperature.data.fill_(20.0)
    sharp.keep_in_bounds()
    assert sharp.temperature.item() == pytest.approx(100)


def test_padding_of_words_changes_nothing():
    similarity, x, y = made("local_words")
    longer = F.pad(y, (0, 0, 0, 3))
    assert torch.equal(similarity(x, y), similarity(x, longer))
    torch.testing.assert_close(similarity(x, y[:1]), similarity(x, y)[:, :1])


@every
def test_autocast_does_not_round_and_large_batches_are_chunked(name):
    similarity, x, y = made(name)
    single = similarity.float()
    exact = single(x.float(), y.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(single(x.float(), y.float()), exact)
    large = torch.zeros(512, 225, 6), torch.zeros(512, *y.shape[1:])
    similarity.settings = SimilaritySettings(**CHOICES[name])
    assert 1 <= similarity._chunk(*large) < 512
    assert similarity._chunk(x, y) == 0


def test_heads_must_divide_the_dimension():
    with pytest.raises(ValueError, match="heads 4 does not divide dim 6"):
        ModelSettings(text={"folder": "x"}, dim=6, similarity={"aggregator": "cross_attention"})
