"""LSE+NL similarity between an image's regions and a sentence (methods.md, section 1).

Symbols: ``h_n = <x_n, y>`` cosine of region n and the sentence; ``k`` sharpness of the local
stream; ``t`` temperature of the non-local one; ``w`` weight of the local stream.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.config import SimilaritySettings


def region_scores(regions: Tensor, sentences: Tensor) -> Tensor:
    """Cosine of every region with every sentence.

    Args:
        regions: unit vectors ``[B, N, D]``.
        sentences: unit vectors ``[T, D]``.

    Returns:
        ``[B, T, N]`` in [-1, 1].
    """
    return torch.einsum("bnd,td->btn", regions, sentences)


def log_sum_exp(scores: Tensor, k: float) -> Tensor:
    """Local stream: ``(1/k) log mean_n exp(k h_n)`` over the last axis.

    The mean (not the sum) keeps it between the mean and the maximum of ``scores``.
    """
    return (torch.logsumexp(k * scores, dim=-1) - math.log(scores.shape[-1])) / k


def critical_region(regions: Tensor, scores: Tensor, temperature: float) -> Tensor:
    """Non-local stream: mean of ``h`` weighted by likeness to the best region.

    ``c = argmax_n h_n``, ``a_n = softmax_n(t <x_n, x_c>)``, result ``sum_n a_n h_n``: a convex
    mix, so within [-1, 1]. The choice of ``c`` itself carries no gradient.

    Args:
        regions: ``[B, N, D]``.
        scores: ``[B, T, N]``.
        temperature: ``t``.

    Returns:
        ``[B, T]``.
    """
    best = scores.argmax(dim=-1)
    likeness = regions @ regions.transpose(1, 2)
    rows = torch.gather(likeness, 1, best.unsqueeze(-1).expand(-1, -1, likeness.shape[-1]))
    return (torch.softmax(temperature * rows, dim=-1) * scores).sum(dim=-1)


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
        """``[B, N, D]`` to ``[B, N, D]``."""
        weights = torch.softmax(self.query(regions) @ self.key(regions).transpose(1, 2), dim=-1)
        result: Tensor = regions + self.out(weights @ self.value(regions))
        return result


class Similarity(nn.Module):
    """Image-sentence score in [-1, 1], and the learned scale ``g2`` that multiplies it.

    Always computed in float32 or better, also under autocast: a bfloat16 similarity costs up
    to 0.17 in the loss at scale 14.

    Example:
        >>> similarity = Similarity(SimilaritySettings(), dim=8)
        >>> regions = F.normalize(torch.randn(2, 9, 8), dim=-1)
        >>> sentences = F.normalize(torch.randn(3, 8), dim=-1)
        >>> similarity(regions, sentences).shape
        torch.Size([2, 3])
    """

    def __init__(self, settings: SimilaritySettings, dim: int) -> None:
        super().__init__()
        self.settings = settings
        # gamma^2 is stored as its logarithm and read through `scale`, clamped to [1, 100].
        self.log_scale = nn.Parameter(torch.tensor(math.log(settings.initial_scale)))
        attends = settings.non_local == "self_attention" and settings.aggregator in ("nl", "lse_nl")
        self.non_local = NonLocalBlock(dim) if attends else None

    @property
    def scale(self) -> Tensor:
        """``g2 = gamma^2``, a scalar in [1, 100] that carries gradient."""
        return self.log_scale.exp().clamp(1.0, 100.0)

    def forward(self, regions: Tensor, sentences: Tensor) -> Tensor:
        """Score every image with every sentence, on the cosine scale (without ``g2``).

        Args:
            regions: unit vectors ``[B, N, D]``.
            sentences: unit vectors ``[T, D]``.

        Returns:
            ``[B, T]`` in [-1, 1].
        """
        with torch.autocast(regions.device.type, enabled=False):
            regions, sentences = _at_least_float32(regions), _at_least_float32(sentences)
            s = self.settings
            if s.aggregator == "global":
                return pooled_cosine(regions, sentences)
            scores = region_scores(regions, sentences)
            match s.aggregator:
                case "max":
                    return scores.amax(dim=-1)
                case "mean":
                    return scores.mean(dim=-1)
                case "lse":
                    return log_sum_exp(scores, s.k)
                case "nl":
                    return self._global(regions, sentences, scores)
            local = log_sum_exp(scores, s.k)
            mixed = self._global(regions, sentences, scores)
            return s.local_weight * local + (1 - s.local_weight) * mixed

    def _global(self, regions: Tensor, sentences: Tensor, scores: Tensor) -> Tensor:
        if self.settings.non_local == "critical_region":
            return critical_region(regions, scores, self.settings.temperature)
        if self.non_local is not None:
            regions = self.non_local(regions)
        return pooled_cosine(regions, sentences)


def pooled_cosine(regions: Tensor, sentences: Tensor) -> Tensor:
    """Cosine of the mean region with the sentence (the global score of BioViL): ``[B, T]``."""
    return F.normalize(regions.mean(dim=1), dim=-1) @ sentences.T


def _at_least_float32(x: Tensor) -> Tensor:
    return x if x.dtype == torch.float64 else x.float()
