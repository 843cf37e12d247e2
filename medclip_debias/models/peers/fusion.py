"""Scores that need both towers: where a sentence attends over the image, or has several vectors.

An image is here its tokens ``[B, 1 + N, D]``: the vector of the whole image, then the regions.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from itertools import pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.models.interface import MapKind
from medclip_debias.models.peers.settings import FusionSettings
from medclip_debias.models.similarity import region_scores

CARZERO_SCALE = 100.0
"""CARZero's logit has no bound; a hundredth of it is what a score is here."""


class Fusion(nn.Module):
    """Base: scores and maps from an image's tokens and what the text tower gave.

    Attributes:
        map_kind: what `maps` holds.
        whole_alone: whether `scores` reads the first token alone.
        sentence_rows: as in `medclip_debias.models.interface.ImageTextModel`.
    """

    map_kind: ClassVar[MapKind] = "cosine"
    whole_alone: ClassVar[bool] = False
    sentence_rows: ClassVar[tuple[int, int] | None] = None

    @property
    def scale(self) -> float | None:
        """What scores were multiplied by in training, in [1, 100]; None where it is not known."""
        return None

    @abstractmethod
    def scores(self, tokens: Tensor, sentences: Tensor) -> Tensor:
        """Scores ``[B, T]`` of tokens ``[B, 1 + N, D]`` and sentences ``[T, ...]``."""

    @abstractmethod
    def maps(self, tokens: Tensor, sentences: Tensor) -> Tensor:
        """A map over the regions for every image and sentence ``[B, T, N]``."""


class SimilarityAttention(Fusion):
    """RadZero (Park et al. 2025) and CoNNS: a sentence attends by cosine.

    Each token weighs ``softmax(cos / t)``, and the score is the cosine of the sentence and the
    mean of the unit tokens under these weights. The map is the cosines themselves. ``t`` is the
    learned temperature of the loss, unless the attention has its own.
    """

    def __init__(self, own_attention: bool) -> None:
        super().__init__()
        self.loss_temperature = nn.Parameter(torch.full((1,), math.log(0.07)))
        self.attn_temperature: nn.Parameter | None = None
        if own_attention:
            self.attn_temperature = nn.Parameter(torch.full((1,), math.log(0.07)))

    @property
    def scale(self) -> float:
        """One over the learned temperature of the loss, within [1, 100]."""
        return min(max(float((-self.loss_temperature.detach()).exp()), 1.0), 100.0)

    def scores(self, tokens: Tensor, sentences: Tensor) -> Tensor:
        """See `Fusion.scores`; sentences are unit vectors ``[T, D]``."""
        own = self.attn_temperature
        temperature = (self.loss_temperature if own is None else own).exp()
        found = []
        for each in tokens:  # one image at a time: all cosines of a batch would be large
            cosines = sentences @ each.T
            mean = (cosines / temperature).softmax(dim=-1) @ each
            found.append((F.normalize(mean, dim=-1) * sentences).sum(dim=-1))
        return torch.stack(found)

    def maps(self, tokens: Tensor, sentences: Tensor) -> Tensor:
        """See `Fusion.maps`."""
        return region_scores(tokens[:, 1:], sentences)


class QueryAttention(Fusion):
    """CARZero (Lai et al. 2024): a decoder that asks one side about the other, both ways.

    The sentence asks the image's tokens, the image asks the sentence's words; each answer goes
    through the same layers and the same perceptron to one logit, and the mean of the two is the
    published score, of which a hundredth is taken here. There is no attention among queries, so
    a score does not depend on what else is asked. The map is how the sentence's attention spreads
    over the regions, averaged over heads and layers; the first token takes the rest of it.

    All vectors come standardised (zero mean, unit length): the published network begins with a
    layer norm of each, whose learned part is applied here.

    Args:
        settings: sizes; ``positions`` is how many words the published sentence is filled up to
            with zeros, which take part in its attention.
        dim: D.
    """

    map_kind: ClassVar[MapKind] = "attention"
    sentence_rows: ClassVar[tuple[int, int] | None] = (0, 0)

    def __init__(self, settings: FusionSettings, dim: int) -> None:
        super().__init__()
        self.positions = settings.positions
        self.decoder_norm = nn.LayerNorm(dim)
        self.layers = nn.ModuleList(
            _Question(dim, settings.heads, settings.hidden) for _ in range(settings.layers)
        )
        steps: list[nn.Module] = []
        widths = [dim, *settings.mlp, 1]
        for before, after in pairwise(widths):
            steps += [nn.Linear(before, after), nn.ReLU()]
        self.mlp_head = nn.Sequential(*steps[:-1])

    @property
    def scale(self) -> float:
        """The published logit is this many times the score."""
        return CARZERO_SCALE

    def scores(self, tokens: Tensor, sentences: Tensor) -> Tensor:
        """See `Fusion.scores`; sentences are ``[T, 1 + W, D]``: whole, words, zeros."""
        images, texts = self._learned(tokens), self._learned(sentences)
        of_text = torch.stack([self._ask(texts[:, 0], image)[0] for image in images])
        answers = []
        for raw, text in zip(sentences, texts, strict=True):
            there = raw.abs().sum(dim=-1) > 0
            bias = torch.zeros(int(there.sum()), device=raw.device)
            memory = text[there]
            blank = self.positions - (len(memory) - 1)
            if blank > 0:
                # Alike rows of a memory are one row, with the logarithm of their number added.
                memory = torch.cat([memory, self.decoder_norm.bias[None]])
                bias = torch.cat([bias, bias.new_tensor([math.log(blank)])])
            answers.append(self._ask(images[:, 0], memory, bias)[0])
        both: Tensor = (of_text + torch.stack(answers, dim=1)) / (2 * CARZERO_SCALE)
        return both

    def maps(self, tokens: Tensor, sentences: Tensor) -> Tensor:
        """See `Fusion.maps`."""
        images, queries = self._learned(tokens), self._learned(sentences[:, 0])
        return torch.stack([self._ask(queries, image)[1][:, 1:] for image in images])

    def _learned(self, vectors: Tensor) -> Tensor:
        """Standardised unit vectors to what the published layer norm gives."""
        norm = self.decoder_norm
        return vectors * (math.sqrt(vectors.shape[-1]) * norm.weight) + norm.bias

    def _ask(
        self, queries: Tensor, memory: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits ``[Q]`` of queries ``[Q, D]`` to one memory ``[S, D]``, and attention ``[Q, S]``.

        ``bias`` ``[S]`` is added to the attention's logits.
        """
        mask = None if bias is None else bias.expand(len(queries), -1)
        spread = queries.new_zeros(len(queries), len(memory))
        for layer in self.layers:
            queries, weights = layer(queries, memory, mask)
            spread = spread + weights / len(self.layers)
        logits: Tensor = self.mlp_head(self.decoder_norm(queries))[:, 0]
        return logits, spread


class _Question(nn.Module):
    """Attention of queries over a memory, then a perceptron; both with norms before."""

    def __init__(self, dim: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.multihead_attn = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.linear1, self.linear2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.norm2, self.norm3 = nn.LayerNorm(dim), nn.LayerNorm(dim)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        found, weights = self.multihead_attn(self.norm2(x), memory, memory, attn_mask=mask)
        x = x + found
        return x + self.linear2(F.relu(self.linear1(self.norm3(x)))), weights


class TwoSpaces(Fusion):
    """MGCA (Wang et al. 2022): whole images and regions lie in spaces of their own.

    A sentence is ``[T, 2, D]``: its unit vector for whole images, and the mean of its words' unit
    vectors in the space of the regions. So the map is the mean over the words of their cosines.
    """

    whole_alone: ClassVar[bool] = True
    sentence_rows: ClassVar[tuple[int, int] | None] = (0, 1)

    def scores(self, tokens: Tensor, sentences: Tensor) -> Tensor:
        """See `Fusion.scores`."""
        return tokens[:, 0] @ sentences[:, 0].T

    def maps(self, tokens: Tensor, sentences: Tensor) -> Tensor:
        """See `Fusion.maps`."""
        return region_scores(tokens[:, 1:], sentences[:, 1])


def build_fusion(settings: FusionSettings | None, dim: int) -> Fusion | None:
    """The fusion that ``settings`` name, with weights at random; None for cosines alone."""
    if settings is None:
        return None
    match settings.kind:
        case "similarity_attention":
            return SimilarityAttention(settings.own_attention)
        case "query_attention":
            return QueryAttention(settings, dim)
        case _:
            return TwoSpaces()
