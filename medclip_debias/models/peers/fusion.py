"""Scores of peers: cosines of two vectors, and those that need both towers together."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable
from itertools import pairwise
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.errors import UserError
from medclip_debias.models.checkpoint import layers_in, shape_of
from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.interface import Outputs
from medclip_debias.models.peers.images import State
from medclip_debias.models.peers.settings import FusionSettings, PeerSettings
from medclip_debias.models.similarity import SCALE_MAX, SCALE_MIN, region_scores

UNBOUNDED_SCALE = 100.0
"""CARZero's logit and AFLoc's product have no bound; a hundredth of them is a score here."""

_IMAGES, _QUERIES = 32, 256
_ASKED = re.compile(
    r"(?:there (?:is|are) )?(?P<no>no )?(?:evidence of |signs? of )?(?P<what>.+?)\.?", re.IGNORECASE
)


def tokens_of(features: ImageFeatures) -> Tensor:
    """The vector of the whole image, then the regions ``[B, 1 + N, D]``."""
    if features.whole is None:  # what an index keeps is both
        return features.regions
    return torch.cat([features.whole[:, None], features.regions], dim=1)


class Fusion(nn.Module):
    """Base: scores and maps from an image's vectors and what the text tower gave.

    Attributes:
        outputs: of the model that has it.
        raw: whether it takes vectors as they leave the towers, of any length.
    """

    outputs: Outputs
    raw: ClassVar[bool] = False

    @property
    def scale(self) -> float | None:
        """What scores were multiplied by in training, in [1, 100]; None where it is not known."""
        return None

    def encoded(self, texts: list[str], encode: Callable[[list[str]], Tensor]) -> Tensor:
        """What `scores` takes of sentences; ``encode`` is the text tower."""
        return encode(texts)

    @abstractmethod
    def scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """Scores ``[B, T]`` of images and sentences ``[T, ...]``."""

    @abstractmethod
    def maps(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """A map over the regions for every image and sentence ``[B, T, N]``."""


class Cosines(Fusion):
    """The cosine of the whole image's vector with the sentence's."""

    def __init__(self, settings: PeerSettings) -> None:
        super().__init__()
        form: Literal["none", "vector"] = "none" if settings.text.kind == "none" else "vector"
        self.outputs = Outputs(has_whole=True, whole_alone=True, text_form=form)
        self.published_scale = settings.scale

    @property
    def scale(self) -> float | None:
        scale = self.published_scale
        return None if scale is None else min(max(scale, SCALE_MIN), SCALE_MAX)

    def scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        assert features.whole is not None
        return features.whole @ sentences.T

    def maps(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        return region_scores(features.regions, sentences)


class SimilarityAttention(Fusion):
    """RadZero (Park et al. 2025) and CoNNS: a sentence attends by cosine.

    Each token weighs ``softmax(cos / t)``, and the score is the cosine of the sentence and the
    mean of the unit tokens under these weights. The map is the cosines themselves. ``t`` is the
    learned temperature of the loss, unless the attention has its own.
    """

    outputs = Outputs(has_whole=True)

    def __init__(self, own_attention: bool) -> None:
        super().__init__()
        self.loss_temperature = nn.Parameter(torch.full((1,), math.log(0.07)))
        if own_attention:
            self.attn_temperature = nn.Parameter(torch.full((1,), math.log(0.07)))

    @property
    def _log_temperature(self) -> Tensor:
        return getattr(self, "attn_temperature", self.loss_temperature)

    @property
    def sharpness(self) -> float:
        """One over the temperature of the attention."""
        return float((-self._log_temperature.detach()).exp())

    @property
    def scale(self) -> float:
        return min(max(float((-self.loss_temperature.detach()).exp()), 1.0), 100.0)

    def scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        scores = []
        for each in tokens_of(features):  # all cosines of a batch at once would be large
            cosines = sentences @ each.T
            mean = (cosines / self._log_temperature.exp()).softmax(dim=-1) @ each
            scores.append((F.normalize(mean, dim=-1) * sentences).sum(dim=-1))
        return torch.stack(scores)

    def maps(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        return region_scores(tokens_of(features)[:, 1:], sentences)


class QueryAttention(Fusion):
    """CARZero (Lai et al. 2024): the sentence asks the image's tokens, the image its words.

    Each answer goes through the same layers and perceptron to one logit; a hundredth of their mean
    is the score. The map is how the sentence's attention spreads over the regions, averaged over
    heads and layers; the first token takes the rest. All vectors come standardised: the published
    network begins with a layer norm of each, whose learned part is applied here.
    """

    outputs = Outputs(has_whole=True, sentence_rows=(0, 0), map_kind="attention")

    def __init__(self, settings: FusionSettings, state: State, dim: int) -> None:
        super().__init__()
        self.positions = settings.positions
        self.decoder_norm = nn.LayerNorm(dim)
        self.layers = _layers(settings, state, dim)
        steps: list[nn.Module] = []
        names = (f"fusion.mlp_head.{number}.weight" for number in range(0, 10, 2))
        inside = [shape_of(state, name)[0] for name in names if name in state][:-1]
        for before, after in pairwise([dim, *inside, 1]):
            steps += [nn.Linear(before, after), nn.ReLU()]
        self.mlp_head = nn.Sequential(*steps[:-1])

    @property
    def scale(self) -> float:
        return UNBOUNDED_SCALE

    def scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        images, texts = self._learned(tokens_of(features)), self._learned(sentences)
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
        return (of_text + torch.stack(answers, dim=1)) / (2 * UNBOUNDED_SCALE)

    def maps(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        images, queries = self._learned(tokens_of(features)), self._learned(sentences[:, 0])
        return torch.stack([self._ask(queries, image)[1][:, 1:] for image in images])

    def _learned(self, vectors: Tensor) -> Tensor:
        """Standardised unit vectors to what the published layer norm gives."""
        norm = self.decoder_norm
        return vectors * (math.sqrt(vectors.shape[-1]) * norm.weight) + norm.bias

    def _ask(
        self, queries: Tensor, memory: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Logits ``[Q]`` of queries ``[Q, D]`` to a memory ``[S, D]``, and attention ``[Q, S]``."""
        mask = None if bias is None else bias.expand(len(queries), -1)
        spread = queries.new_zeros(len(queries), len(memory))
        for layer in self.layers:
            queries, weights = layer(queries, memory, mask)
            spread = spread + weights / len(self.layers)
        logits: Tensor = self.mlp_head(self.decoder_norm(queries))[:, 0]
        return logits, spread


class _Question(nn.TransformerDecoderLayer):
    """torch's decoder layer, norms first, that keeps its attention over the memory.

    CARZero's has no attention of the queries over each other.
    """

    def __init__(self, dim: int, heads: int, hidden: int, *, among: bool = False) -> None:
        super().__init__(dim, heads, hidden, 0.0, batch_first=True, norm_first=True)
        self.among = among
        if not among:
            del self.self_attn, self.norm1

    def forward(  # type: ignore[override]
        self, x: Tensor, memory: Tensor, mask: Tensor | None = None, blocked: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Queries and their attention; ``mask`` is added over the memory."""
        if self.among:
            x = x + self._sa_block(self.norm1(x), blocked, None)
        answers, weights = self.multihead_attn(self.norm2(x), memory, memory, attn_mask=mask)
        x = x + answers
        return x + self._ff_block(self.norm3(x)), weights


def _layers(
    settings: FusionSettings, state: State, dim: int, *, among: bool = False
) -> nn.ModuleList:
    """As many questions, of the same width inside, as ``state`` has."""
    count = layers_in(state, r"^fusion\.layers\.(\d+)\.")
    hidden = shape_of(state, "fusion.layers.0.linear1.weight")[0]
    return nn.ModuleList(_Question(dim, settings.heads, hidden, among=among) for _ in range(count))


class TwoSpaces(Fusion):
    """MGCA (Wang et al. 2022): whole images and regions lie in spaces of their own.

    A sentence is ``[T, 2, D]``: one for whole images, the mean of its words' units for regions.
    """

    outputs = Outputs(has_whole=True, whole_alone=True, sentence_rows=(0, 1))

    def scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        assert features.whole is not None
        return features.whole @ sentences[:, 0].T

    def maps(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        return region_scores(features.regions, sentences[:, 1])


class Products(Fusion):
    """AFLoc (Yang et al. 2024): a hundredth of products of vectors of any length; ``[T, 1, D]``."""

    outputs = Outputs(has_whole=True, whole_alone=True, sentence_rows=(0, 0))
    raw: ClassVar[bool] = True

    def encoded(self, texts: list[str], encode: Callable[[list[str]], Tensor]) -> Tensor:
        return encode(texts)[:, None]

    def scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        assert features.whole is not None
        return features.whole @ sentences[:, 0].T / UNBOUNDED_SCALE

    def maps(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        return region_scores(features.regions, sentences[:, 0]) / UNBOUNDED_SCALE


class WordAttention(Fusion):
    """GLoRIA's local score (Huang et al. 2021, section 3.2): words attend to regions.

    Each region shares its weight among the words ``w``, ``softmax over w of <v, w>``; each word
    takes its mean region by ``a = softmax over v of 4 times that weight`` (equations 4 and 5),
    ``c = sum of a v``; the score is ``max over w of cos(w, c)``, the map the mean of the words'
    attention. With ``both`` it is a third of the authors' ``(5 local + cosine) / 2``. A sentence is
    its own unit vector and those of its words ``[T, 1 + W, D]``, padded with zeros. Two slips of
    the published code are not followed (docs/peers.md).
    """

    outputs = Outputs(has_whole=True, sentence_rows=(0, 0), text_form="words", map_kind="attention")
    raw: ClassVar[bool] = True

    def __init__(self, score: Literal["local", "both"]) -> None:
        super().__init__()
        self.score = score

    def encoded(self, texts: list[str], encode: Callable[[list[str]], Tensor]) -> Tensor:
        sentences = encode(texts)
        empty = (~sentences[:, 1:].flatten(1).any(dim=1)).nonzero()
        if len(empty):
            number = int(empty[0]) + 1
            raise UserError(f"Sentence {number} holds no word of letters or digits; write one.")
        return sentences

    def attention(self, regions: Tensor, words: Tensor) -> Tensor:
        """How each word ``[W, D]`` spreads over the regions: ``[B, W, N]``; rows sum to one."""
        shares = (regions @ words.T).softmax(dim=-1)
        return (4 * shares).softmax(dim=1).transpose(1, 2)

    def scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        tokens, best = tokens_of(features), []
        whole, regions = tokens[:, 0], tokens[:, 1:]
        for words in _words(sentences):
            seen = self.attention(regions, words) @ regions
            best.append(F.cosine_similarity(seen, words, dim=-1).amax(dim=1))
        local = torch.stack(best, dim=1) if best else regions.new_zeros(len(regions), 0)
        if self.score == "local":
            return local
        return (5 * local + F.normalize(whole, dim=-1) @ sentences[:, 0].T) / 6

    def maps(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        regions = tokens_of(features)[:, 1:]
        maps = [self.attention(regions, words).mean(dim=1) for words in _words(sentences)]
        return torch.stack(maps, dim=1)


def _words(sentences: Tensor) -> list[Tensor]:
    """The words of each sentence ``[W, D]``, without the padding, which is exactly zero."""
    return [words[words.abs().sum(dim=-1) > 0] for words in sentences[:, 1:]]


class QueryNetwork(Fusion):
    """MedKLIP (Wu et al. 2023) and KAD (Zhang et al. 2023): questions that read the regions.

    A decoder whose queries attend to each other and to the regions. The authors ask the same list,
    the book, of every image; any other question reads the book's and itself and is read by none, so
    that no score depends on what is asked beside it. A sentence is ``[T, 2, D]``: its query, and a
    row of ones where it denies, which is answered with the probability of absence. The map is the
    question's attention, averaged over heads; ``book`` the book's queries, which the peer encodes.
    """

    outputs = Outputs(sentence_rows=(None, None), map_kind="attention")
    raw: ClassVar[bool] = True

    def __init__(self, settings: FusionSettings, state: State, dim: int) -> None:
        super().__init__()
        self.texts = tuple(dict.fromkeys(settings.book.values()))
        self.names = {name.lower(): text for name, text in settings.book.items()}
        self.norm_inputs, self.last_map = settings.norm_inputs, settings.last_map
        self.norm = nn.LayerNorm(dim)
        self.layers = _layers(settings, state, dim, among=True)
        self.classifier = nn.Linear(dim, 2)
        self.book: Tensor | None = None

    def question(self, sentence: str) -> tuple[str, bool]:
        """The text that a sentence ("No X") is asked by, the book's of X, and whether it denies."""
        match = _ASKED.fullmatch(" ".join(sentence.split()))
        plain = match["what"] if match else sentence
        denied = bool(match and match["no"])
        return self.names.get(plain.lower(), plain), denied

    def encoded(self, texts: list[str], encode: Callable[[list[str]], Tensor]) -> Tensor:
        questions = [self.question(text) for text in texts]
        vectors = encode([text for text, _ in questions])
        denied = vectors.new_tensor([float(no) for _, no in questions])
        return torch.stack([vectors, denied[:, None].expand_as(vectors)], dim=1)

    def scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        answers = self._answers(features.regions, sentences[:, 0])[0].softmax(dim=-1)
        denied = sentences[:, 1:].amax(dim=(1, 2)) > 0.5 if sentences.shape[1] > 1 else None
        there = answers[..., 1]
        return there if denied is None else torch.where(denied, answers[..., 0], there)

    def maps(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        return self._answers(features.regions, sentences[:, 0])[1]

    def _answers(self, regions: Tensor, queries: Tensor) -> tuple[Tensor, Tensor]:
        """Logits ``[B, T, 2]`` and maps ``[B, T, N]`` of the queries ``[T, D]``."""
        if self.book is None:
            raise ValueError("encode the book first")
        book = self.book.to(queries)
        # Equal but for the rounding of another batch, or of storage in half precision.
        apart = torch.cdist(queries.double(), book.double())
        near, place = apart.min(dim=1)
        known = near <= 1e-3 * book.norm(dim=-1)[place]
        other = (~known).nonzero()[:, 0]
        columns = place.clone()
        columns[other] = len(book) + torch.arange(len(other), device=other.device)
        logits: list[Tensor] = []
        maps: list[Tensor] = []
        for some in regions.split(_IMAGES):
            parts = [self._decode(some, book, queries[own]) for own in other.split(_QUERIES)]
            parts = parts or [self._decode(some, book, queries[:0])]
            count = len(book)
            for into, which in ((logits, 0), (maps, 1)):
                free = [part[which][:, count:] for part in parts]
                into.append(torch.cat([parts[0][which][:, :count], *free], dim=1)[:, columns])
        return torch.cat(logits), torch.cat(maps)

    def _decode(self, regions: Tensor, book: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
        x, memory = torch.cat([book, others]), regions
        if self.norm_inputs:
            x, memory = self.norm(x), self.norm(memory)
        blocked = torch.ones(len(x), len(x), dtype=torch.bool, device=x.device)
        blocked[:, : len(book)] = False
        blocked.fill_diagonal_(False)
        x = x.expand(len(regions), -1, -1)
        maps = []
        for layer in self.layers:
            x, weights = layer(x, memory, blocked=blocked)
            maps.append(weights)
        answers: Tensor = self.classifier(self.norm(x))
        return answers, maps[-1] if self.last_map else torch.stack(maps).mean(dim=0)


def build_fusion(settings: PeerSettings, state: State) -> Fusion:
    if settings.score != "whole":
        return WordAttention(settings.score)
    if settings.fusion is None:
        return Cosines(settings)
    match settings.fusion.kind:
        case "similarity_attention":
            return SimilarityAttention("fusion.attn_temperature" in state)
        case "query_attention":
            return QueryAttention(settings.fusion, state, settings.dim)
        case "query_network":
            return QueryNetwork(settings.fusion, state, settings.dim)
        case "products":
            return Products()
        case _:
            return TwoSpaces()
