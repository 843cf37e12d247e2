"""Similarities in which a sentence, or each of its words, attends over an image's regions.

Each gives scores ``[B, T]`` in [-1, 1] and a map over the regions (docs/methods.md). They hold
several numbers for every image, sentence and region; `in_chunks` forms them for a few images at a
time and again in the backward pass.
"""

from __future__ import annotations

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from medclip_debias.bounds import Bounded, within
from medclip_debias.config import SimilaritySettings

# Bounds of a learned temperature.
SHARP_MIN, SHARP_MAX = 1.0, 100.0


class Aggregator(nn.Module):
    """Base: scores and maps of images' regions and sentences."""

    def forward(self, regions: Tensor, sentences: Tensor) -> Tensor:
        """Scores ``[B, T]`` of regions ``[B, N, D]`` and sentences ``[T, ...]``."""
        raise NotImplementedError

    def maps(self, regions: Tensor, sentences: Tensor) -> Tensor:
        """A map over the regions for every image and sentence ``[B, T, N]``."""
        raise NotImplementedError

    def numbers(self, regions: Tensor, sentences: Tensor) -> int:
        """About how many numbers an image takes in the forward and backward pass together."""
        raise NotImplementedError


def in_chunks(aggregator: Aggregator, x: Tensor, y: Tensor, chunk: int) -> Tensor:
    """``aggregator(x, y)`` for ``chunk`` images at a time, again in the backward pass."""
    again = partial(checkpoint, aggregator, use_reentrant=False, preserve_rng_state=False)
    return torch.cat([again(part, y) for part in x.split(chunk)])


class _Sharp(Aggregator, Bounded):
    """An aggregator with a learned temperature ``t``, kept in [1, 100]."""

    def __init__(self, settings: SimilaritySettings) -> None:
        super().__init__()
        start = min(max(settings.temperature, SHARP_MIN), SHARP_MAX)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(start)))

    @property
    def temperature(self) -> Tensor:
        return within(self.log_temperature.exp(), SHARP_MIN, SHARP_MAX)

    @torch.no_grad()
    def keep_in_bounds(self) -> None:
        self.log_temperature.clamp_(math.log(SHARP_MIN), math.log(SHARP_MAX))


class Attention(_Sharp):
    """``a_n = softmax_n(t h_n)``; the score is ``sum_n a_n h_n``, or the mixed region's cosine."""

    def __init__(self, settings: SimilaritySettings) -> None:
        super().__init__(settings)
        self.value = settings.attention_value

    def forward(self, regions: Tensor, sentences: Tensor) -> Tensor:
        h = self.maps(regions, sentences)
        weights = torch.softmax(self.temperature * h, dim=-1)
        if self.value == "similarity":
            return (weights * h).sum(dim=-1)
        return (F.normalize(weights @ regions, dim=-1) * sentences).sum(dim=-1)

    def maps(self, regions: Tensor, sentences: Tensor) -> Tensor:
        return torch.einsum("bnd,td->btn", regions, sentences)

    def numbers(self, regions: Tensor, sentences: Tensor) -> int:
        mixed = 2 * regions.shape[2] if self.value == "region" else 0
        return len(sentences) * (4 * regions.shape[1] + mixed)


class _CrossLayer(nn.Module):
    """Attention of the sentences over the regions, then a feed-forward network; both residual."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_feed = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.query, self.key, self.value, self.out = (nn.Linear(dim, dim) for _ in range(4))
        self.feed = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))

    def forward(self, queries: Tensor, regions: Tensor) -> Tensor:
        """``[B or 1, T, D]`` and ``[B, N, D]`` to ``[B, T, D]``."""
        q, k = self._asked(queries, regions)
        v = self._split(self.value(regions))
        mixed = F.scaled_dot_product_attention(q.expand(len(k), -1, -1, -1), k, v)
        queries = queries + self.out(mixed.transpose(1, 2).flatten(2))
        return queries + self.feed(self.norm_feed(queries))

    def weights(self, queries: Tensor, regions: Tensor) -> Tensor:
        """The attention ``[B, T, N]``, mean over the heads; each map sums to one."""
        q, k = self._asked(queries, regions)
        logits = q @ k.transpose(2, 3) / math.sqrt(q.shape[-1])
        return torch.softmax(logits, dim=-1).mean(dim=1)

    def _asked(self, queries: Tensor, regions: Tensor) -> tuple[Tensor, Tensor]:
        return self._split(self.query(self.norm_attention(queries))), self._split(self.key(regions))

    def _split(self, x: Tensor) -> Tensor:
        """``[B, L, D]`` to ``[B, heads, L, D / heads]``."""
        return x.unflatten(2, (self.heads, -1)).transpose(1, 2)


class CrossAttention(Aggregator):
    """Cross-attention alignment (CARZero, Lai et al., CVPR 2024), from sentences to regions.

    Sentences are the queries of a transformer decoder without self-attention over the regions; two
    layers give the score of what comes out. Its map is the last layer's attention. As in CARZero's
    code, but: a ``tanh`` keeps the score in [-1, 1]; no dropout; not from images to words as well.
    """

    def __init__(self, settings: SimilaritySettings, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.layers = nn.ModuleList(
            _CrossLayer(dim, settings.heads) for _ in range(settings.layers)
        )
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, regions: Tensor, sentences: Tensor) -> Tensor:
        x, queries = self.norm(regions), self.norm(sentences)[None]
        for layer in self.layers:
            queries = layer(queries, x)
        score: Tensor = self.head(self.norm(queries))
        return torch.tanh(score[..., 0])

    def maps(self, regions: Tensor, sentences: Tensor) -> Tensor:
        x, queries = self.norm(regions), self.norm(sentences)[None]
        *before, last = self.layers
        for layer in before:
            queries = layer(queries, x)
        assert isinstance(last, _CrossLayer)
        return last.weights(queries, x).expand(len(regions), -1, -1)

    def numbers(self, regions: Tensor, sentences: Tensor) -> int:
        n, dim = regions.shape[1:]
        heads = self.layers[0].heads if isinstance(self.layers[0], _CrossLayer) else 1
        sentence = len(self.layers) * (14 * dim + heads * n) + 4 * dim
        return len(sentences) * sentence + len(self.layers) * 4 * n * dim


class LocalWords(_Sharp):
    """Each word attends over the regions (GLoRIA, Huang et al., ICCV 2021).

    ``a_wn = softmax_n(t <y_w, x_n>)``, ``c_w = sum_n a_wn x_n``, and the score is
    ``(1/k) log mean_w exp(k cos(c_w, y_w))``. Its map is the mean of the words' attention. GLoRIA
    first takes a softmax over the words, fixes t = 4 and k = 5, and adds the exponentials up.
    """

    def __init__(self, settings: SimilaritySettings) -> None:
        super().__init__(settings)
        self.k = settings.k

    def forward(self, regions: Tensor, sentences: Tensor) -> Tensor:
        """Scores ``[B, T]`` of regions ``[B, N, D]`` and words ``[T, L, D]``, 0 where none is."""
        y, there = _kept(sentences)
        weights = self._attention(regions, y)
        # All words of all sentences side by side: a product that broadcasts would copy the regions.
        mixed = (weights.flatten(1, 2) @ regions).unflatten(1, weights.shape[1:3])
        cosines = (F.normalize(mixed, dim=-1) * y).sum(dim=-1)
        logits = (self.k * cosines).masked_fill(~there, -torch.inf)
        count = there.sum(dim=-1)
        return (torch.logsumexp(logits, dim=-1) - count.to(cosines.dtype).log()) / self.k

    def maps(self, regions: Tensor, sentences: Tensor) -> Tensor:
        y, there = _kept(sentences)
        share = there.to(y.dtype) / there.sum(dim=-1, keepdim=True)
        return (self._attention(regions, y) * share[..., None]).sum(dim=2)

    def numbers(self, regions: Tensor, sentences: Tensor) -> int:
        words = len(sentences) * sentences.shape[1]
        return words * (3 * regions.shape[1] + 3 * regions.shape[2])

    def _attention(self, regions: Tensor, words: Tensor) -> Tensor:
        """``[B, T, L, N]``."""
        h = torch.einsum("bnd,tld->btln", regions, words)
        return torch.softmax(self.temperature * h, dim=-1)


def _kept(words: Tensor) -> tuple[Tensor, Tensor]:
    """Words ``[T, L, D]`` without columns of padding (zeros), and which ``[T, L]`` are words."""
    there = words.detach().abs().sum(dim=-1) > 0
    longest = int(there.sum(dim=-1).amax()) if len(words) else 0
    return words[:, :longest], there[:, :longest]


def build_aggregator(settings: SimilaritySettings, dim: int) -> Aggregator | None:
    match settings.aggregator:
        case "attention":
            return Attention(settings)
        case "cross_attention":
            return CrossAttention(settings, dim)
        case "local_words":
            return LocalWords(settings)
    return None
