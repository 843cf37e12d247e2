"""Similarity between an image's regions and a sentence: LSE+NL and others (docs/methods.md).

Symbols: ``h_n = <x_n, y>`` cosine of region n and the sentence; ``k`` sharpness of the local
stream; ``t`` temperature of the non-local one; ``w`` weight of the local stream.

The plain form holds every ``h`` of the batch at once, ``[B, T, N]``, several times over. Large
batches go through `chunked_similarity` instead, which holds those of a few images.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.bounds import Bounded, within
from medclip_debias.config import SimilaritySettings
from medclip_debias.models.aggregators import build_aggregator, in_chunks

# Bounds of the learned scale g2.
SCALE_MIN, SCALE_MAX = 1.0, 100.0

# Bytes of all h up to which they are formed at once, and bytes of h formed at a time beyond. On a
# CPU a block that stays in the cache is fastest; an accelerator wants larger ones.
_ON_CPU = 2**25, 2**23
_ELSEWHERE = 2**28, 2**28
# Of all that an aggregator holds, not of h alone.
_OF_AGGREGATORS = 2**28, 2**26
# But no more blocks than this: threads wait for each other several times a block.
_BLOCKS = 16


def region_scores(regions: Tensor, sentences: Tensor) -> Tensor:
    """Cosines ``[B, T, N]`` of unit regions ``[B, N, D]`` and sentences ``[T, D]``."""
    return torch.einsum("bnd,td->btn", regions, sentences)


def log_sum_exp(scores: Tensor, k: float) -> Tensor:
    """Local stream: ``(1/k) log mean_n exp(k h_n)`` over the last axis."""
    return (torch.logsumexp(k * scores, dim=-1) - math.log(scores.shape[-1])) / k


def critical_region(regions: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Non-local stream ``[B, T]``: mean of ``h`` ``[B, T, N]`` weighted by likeness to the best.

    ``c = argmax_n h_n``, ``a_n = softmax_n(t <x_n, x_c>)``, result ``sum_n a_n h_n``; the choice of
    ``c`` carries no gradient.
    """
    best = scores.argmax(dim=-1)
    # Few sentences: only the rows that they ask for. An exported graph has one way for any number.
    if torch.compiler.is_exporting() or best.shape[1] < regions.shape[1]:
        rows = _pick(regions, best) @ regions.transpose(1, 2)
    else:
        likeness = regions @ regions.transpose(1, 2)
        rows = torch.gather(likeness, 1, best.unsqueeze(-1).expand(-1, -1, likeness.shape[-1]))
    return (torch.softmax(temperature * rows, dim=-1) * scores).sum(dim=-1)


class _Chunked(torch.autograd.Function):
    """``w L + (1 - w) G``, a few images at a time, with the gradient written out.

    ``G_ij = <P_ic, y_j>`` with the context vectors ``P = softmax(t X X^T) X`` of an image, so the
    weights are needed once a region and not once a region and sentence. Only ``L`` and ``c`` are
    kept for the backward pass, which forms ``h`` again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        regions: Tensor,
        sentences: Tensor,
        k: float,
        temperature: float | None,
        weight: float,
        chunk: int,
    ) -> Tensor:
        images, n, _ = regions.shape
        out = regions.new_empty(images, len(sentences))
        local = torch.empty_like(out) if weight > 0 else out.new_empty(0)
        best = torch.empty(out.shape, dtype=torch.int32, device=out.device)
        buffer = out.new_empty(min(chunk, images), len(sentences), n)
        for start in range(0, images, chunk):
            x = regions[start : start + chunk]
            part = slice(start, start + len(x))
            h = _scores_into(buffer[: len(x)], x, sentences)
            top, where = h.max(dim=-1)
            best[part] = where
            total = torch.zeros_like(top)
            if weight > 0:
                mass = h.sub_(top[..., None]).mul_(k).exp_().sum(dim=-1)
                local[part] = top + (mass.log() - math.log(n)) / k
                total += weight * local[part]
            if weight < 1:
                context = x if temperature is None else _context(x, temperature)[1]
                total += (1 - weight) * (_pick(context, where) * sentences).sum(dim=-1)
            out[part] = total
        ctx.save_for_backward(regions, sentences, local, best)
        ctx.options = k, temperature, weight, chunk
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        regions, sentences, local, best = ctx.saved_tensors
        k, temperature, weight, chunk = ctx.options
        images, n, dim = regions.shape
        upstream = upstream.contiguous()  # a loss over text anchors hands back a transpose
        to_regions = torch.zeros_like(regions)
        to_sentences = torch.zeros_like(sentences)
        buffer = regions.new_empty(min(chunk, images) if weight > 0 else 0, len(sentences), n)
        for start in range(0, images, chunk):
            x = regions[start : start + chunk]
            part = slice(start, start + len(x))
            gradient = to_regions[part]
            if weight > 0:
                h = _scores_into(buffer[: len(x)], x, sentences)
                # d(w L)/dh_n = w softmax_n(k h), whose normaliser is already in L.
                h.sub_(local[part][..., None]).mul_(k).sub_(math.log(n)).exp_()
                h.mul_((weight * upstream[part])[..., None])
                gradient += h.transpose(1, 2) @ sentences
                to_sentences.addbmm_(h, x)
            if weight < 1:
                weights, context = (None, x) if temperature is None else _context(x, temperature)
                share = ((1 - weight) * upstream[part])[..., None]
                where = best[part].long()
                to_sentences += (share * _pick(context, where)).sum(dim=0)
                to_context = torch.zeros_like(x).view(-1, dim)
                to_context.index_add_(
                    0, _flat(where, n).view(-1), (share * sentences).view(-1, dim)
                )
                to_context = to_context.view_as(x)
                if weights is None:
                    gradient += to_context
                else:
                    gradient += weights.transpose(1, 2) @ to_context
                    slope = to_context @ x.transpose(1, 2)
                    slope = weights * (slope - (weights * slope).sum(dim=-1, keepdim=True))
                    gradient += temperature * ((slope + slope.transpose(1, 2)) @ x)
        return to_regions, to_sentences, None, None, None, None


def _scores_into(buffer: Tensor, regions: Tensor, sentences: Tensor) -> Tensor:
    """`region_scores` written into ``buffer``: fresh memory a chunk costs more than the sums."""
    left = sentences.expand(len(regions), -1, -1)
    return torch.bmm(left, regions.transpose(1, 2), out=buffer)


def _context(regions: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Weights ``softmax_n(t <x_n, x_c>)`` ``[B, N, N]`` for every c, and the mix they give."""
    weights = torch.softmax(temperature * (regions @ regions.transpose(1, 2)), dim=-1)
    return weights, weights @ regions


def _flat(where: Tensor, n: int) -> Tensor:
    """Region numbers ``[B, T]`` as rows of ``[B * n, D]``."""
    return where + n * torch.arange(where.shape[0], device=where.device)[:, None]


def _pick(vectors: Tensor, where: Tensor) -> Tensor:
    """The vector of region ``where[b, t]`` of image b: ``[B, T, D]``."""
    return F.embedding(_flat(where, vectors.shape[1]), vectors.flatten(0, 1))


def chunked_similarity(
    regions: Tensor,
    sentences: Tensor,
    *,
    chunk: int,
    weight: float,
    k: float = 1.0,
    temperature: float | None = None,
) -> Tensor:
    """``w L_ij + (1 - w) G_ij`` ``[B, T]`` with memory for ``chunk`` images' ``h`` only.

    Equal to the sum of `log_sum_exp` and `critical_region` up to rounding; it can be differentiated
    once. A ``temperature`` of None is its limit to infinity, where ``G`` is the largest ``h``.
    """
    return _Chunked.apply(regions, sentences, k, temperature, weight, chunk)


class NonLocalBlock(nn.Module):
    """Embedded-Gaussian self-attention over regions with a residual (Wang et al. 2018)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        inner = max(dim // 2, 1)
        self.query = nn.Linear(dim, inner)
        self.key = nn.Linear(dim, inner)
        self.value = nn.Linear(dim, inner)
        self.out = nn.Linear(inner, dim)
        # Starts as the plain average: the block only adds once it has learned something.
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, regions: Tensor) -> Tensor:
        weights = torch.softmax(self.query(regions) @ self.key(regions).transpose(1, 2), dim=-1)
        return regions + self.out(weights @ self.value(regions))


class Similarity(nn.Module, Bounded):
    """Image-sentence score in [-1, 1], and the learned scale ``g2`` that multiplies it.

    Always computed in float32 or better: a bfloat16 similarity costs up to 0.17 in the loss.
    """

    def __init__(self, settings: SimilaritySettings, dim: int) -> None:
        super().__init__()
        self.settings = settings
        # gamma^2 is stored as its logarithm and read through `scale`, which keeps it in bounds.
        self.log_scale = nn.Parameter(torch.tensor(math.log(settings.initial_scale)))
        attends = settings.non_local == "self_attention" and settings.aggregator in ("nl", "lse_nl")
        self.non_local = NonLocalBlock(dim) if attends else None
        self.aggregator = build_aggregator(settings, dim)

    @property
    def scale(self) -> Tensor:
        """``g2 = gamma^2``, a scalar in [1, 100] that carries gradient, at its bounds too."""
        return within(self.log_scale.exp(), SCALE_MIN, SCALE_MAX)

    @torch.no_grad()
    def keep_in_bounds(self) -> None:
        self.log_scale.clamp_(math.log(SCALE_MIN), math.log(SCALE_MAX))

    def forward(self, regions: Tensor, sentences: Tensor) -> Tensor:
        """Score every image with every sentence, on the cosine scale (without ``g2``)."""
        with torch.autocast(regions.device.type, enabled=False):
            regions, sentences = _at_least_float32(regions), _at_least_float32(sentences)
            by_region = self.settings.aggregator not in ("global", "mean")
            chunk = self._chunk(regions, sentences) if by_region else 0
            return self.at_once(regions, sentences, chunk)

    def at_once(self, regions: Tensor, sentences: Tensor, chunk: int = 0) -> Tensor:
        """`forward` in the precision given, in one piece or for ``chunk`` images at a time.

        Exported graphs have it in one piece.
        """
        s = self.settings
        if self.aggregator is not None:
            if chunk:
                return in_chunks(self.aggregator, regions, sentences, chunk)
            return self.aggregator(regions, sentences)
        if s.aggregator == "global":
            return pooled_cosine(regions, sentences)
        if s.aggregator == "mean":
            return regions.mean(dim=1) @ sentences.T
        # The share of the local stream in the mix; ``lse``, ``nl`` and ``max`` are its ends.
        weight = {"lse": 1.0, "nl": 0.0, "max": 0.0}.get(s.aggregator, s.local_weight)
        temperature = None if s.aggregator == "max" else s.temperature
        pooled = s.non_local != "critical_region" and s.aggregator != "max"
        chunked = partial(chunked_similarity, regions, sentences, chunk=chunk, k=s.k)
        if chunk and weight < 1 and not pooled:
            return chunked(weight=weight, temperature=temperature)
        h = None if chunk else region_scores(regions, sentences)
        if weight == 1:
            return chunked(weight=1.0) if h is None else log_sum_exp(h, s.k)
        if pooled:
            mixed = regions if self.non_local is None else self.non_local(regions)
            whole = pooled_cosine(mixed, sentences)
        else:
            assert h is not None
            whole = (
                h.amax(dim=-1) if temperature is None else critical_region(regions, h, temperature)
            )
        if weight == 0:
            return whole
        local = chunked(weight=1.0) if h is None else log_sum_exp(h, s.k)
        return weight * local + (1 - weight) * whole

    def maps(self, regions: Tensor, sentences: Tensor) -> Tensor:
        """The map of every image and sentence ``[B, T, N]``; what it holds says `map_kind`."""
        if self.aggregator is None:
            return region_scores(regions, sentences)
        return self.aggregator.maps(regions, sentences)

    @property
    def map_kind(self) -> Literal["cosine", "attention"]:
        """What `maps` holds: cosines, or shares of a sentence's attention."""
        attends = self.settings.aggregator in ("cross_attention", "local_words")
        return "attention" if attends else "cosine"

    def _chunk(self, regions: Tensor, sentences: Tensor) -> int:
        """Images at a time, or 0 for all at once."""
        if self.settings.chunk is not None:
            return self.settings.chunk
        if self.aggregator is not None:
            image = self.aggregator.numbers(regions, sentences) * regions.element_size()
            at_once, block = _OF_AGGREGATORS
            return 0 if image * len(regions) <= at_once else max(block // image, 1)
        image = len(sentences) * regions.shape[1] * regions.element_size()
        at_once, block = _ON_CPU if regions.device.type == "cpu" else _ELSEWHERE
        if image * len(regions) <= at_once:
            return 0
        return max(block // image, math.ceil(len(regions) / _BLOCKS))


def pooled_cosine(regions: Tensor, sentences: Tensor) -> Tensor:
    """Cosine of the mean region with the sentence (the global score of BioViL): ``[B, T]``."""
    return F.normalize(regions.mean(dim=1), dim=-1) @ sentences.T


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
