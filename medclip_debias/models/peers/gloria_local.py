"""GLoRIA's local score (Huang et al. 2021, section 3.2): words attend to regions.

With words ``w`` and regions ``v`` as they leave the two towers (not of unit length): each region
shares its weight among the words, ``softmax over w of <v, w>``; each word takes its mean region by
``a = softmax over v of 4 times that weight`` (equations 4 and 5), ``c = sum of a v``; and an image
and a sentence are as alike as their best word, ``max over w of cos(w, c)``. That is the score of
the authors' ``get_local_similarities``, which returns 5 times it.

`GloriaLocal` scores by that alone (``local``), or as the authors' zero-shot classification does
(``both``): the mean of their local and global similarities, ``(5 local + cosine) / 2``. It is a
third of that here, so that it lies in [-1, 1]; no order changes.

Two slips of the published code are not followed. It counts the letters of a sentence where words
are meant, so that [SEP] and padding take part. And it drops sentences of one word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.errors import UserError
from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.peers.peer import Peer
from medclip_debias.models.peers.sentence_towers import word_places, word_sums
from medclip_debias.models.peers.settings import PeerPreprocessing, PeerSettings
from medclip_debias.models.peers.text import words_only
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.models.sentences import sentence_list
from medclip_debias.models.text_encoder import SentenceTokenizer

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel, MapKind, SentenceRows, TextForm

SHARPNESS = 4.0
"""The published first temperature."""
LOCAL = 5.0
"""What the authors multiply the local score by."""


class GloriaLocal:
    """GLoRIA by words and regions.

    Regions are as they leave the tower, and sentences ``[T, 1 + L, D]``: their own unit vector, and
    the vectors of their words, padded with zeros. So no sentence has a single vector. All else is
    the peer's, the weights too; an `medclip_debias.models.interface.ImageTextModel`.

    Args:
        model: a GLoRIA that was imported.
        score: ``local``, or ``both``.

    Attributes:
        peer: that GLoRIA.

    Raises:
        UserError: another model.
    """

    has_whole: ClassVar[bool] = True
    whole_alone: ClassVar[bool] = False
    text_form: ClassVar[TextForm] = "words"
    sentence_rows: ClassVar[SentenceRows | None] = (0, 0)
    map_kind: ClassVar[MapKind] = "attention"
    learned_scale: ClassVar[float | None] = None

    def __init__(self, model: ImageTextModel, score: Literal["local", "both"] = "local") -> None:
        own = model.peer if isinstance(model, GloriaLocal) else model
        if not isinstance(own, Peer) or own.settings.kind != "gloria":
            raise UserError("only GLoRIA has a local score, by attention from words to regions.")
        self.peer: Peer = own
        self.by: Literal["local", "both"] = score
        self.prompts, self.provenance = model.prompts, model.provenance
        self.content_hash, self.self_test = model.content_hash, model.self_test

    @property
    def settings(self) -> PeerSettings:
        """Architecture."""
        return self.peer.settings

    @property
    def preprocessing(self) -> PeerPreprocessing:
        """Everything between an image file and `encode_images`."""
        return self.peer.preprocessing

    @property
    def tokenizer(self) -> SentenceTokenizer:
        """What sentences are read with."""
        assert isinstance(self.peer.tokenizer, SentenceTokenizer)  # as in every GLoRIA
        return self.peer.tokenizer

    @property
    def max_tokens(self) -> int:
        """Longest sentence that is read; the rest of a longer one is not seen."""
        return self.peer.max_tokens

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""
        return self.peer.device

    @property
    def dim(self) -> int:
        """D, the width of the words and regions."""
        return self.peer.dim

    @property
    def grid(self) -> RegionGrid:
        """Where the regions of one input lie."""
        return self.peer.grid

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The weights."""
        return self.peer.parameters(recurse)

    def encode_images(self, images: Tensor) -> ImageFeatures:
        """Prepared uint8 ``[B, S, S]`` to regions of any length, and the whole's unit vector."""
        x = self.peer.normalise(images) if images.dtype == torch.uint8 else images
        regions, whole = self.peer.image(x)
        return ImageFeatures(regions, F.normalize(whole.float(), dim=-1))

    def encode_sentences(self, sentences: str | Sequence[str], batch_size: int = 64) -> Tensor:
        """A sentence's own vector and those of its words ``[T, 1 + L, D]``, L of the longest.

        The pieces of a word are added up, and the last four layers, as published.

        Raises:
            UserError: a sentence holds no word.
        """
        words = [words_only(s) for s in sentence_list(sentences)]
        ids = self.tokenizer.encode(words, self.settings.max_tokens)
        found: list[Tensor] = []
        for start in range(0, len(ids), batch_size):
            some = ids[start : start + batch_size]
            padded, mask = (part.to(self.device) for part in self.tokenizer.pad(some))
            out = self.peer.text.bert(  # type: ignore[operator]
                input_ids=padded, attention_mask=mask, output_hidden_states=True
            )
            states = torch.stack(out.hidden_states[-4:]).sum(dim=0).float()
            # The peer's own vector (`BertTower`), brought to unit length as the peer does.
            whole = F.normalize((states * mask[..., None]).sum(dim=1), dim=-1)
            places = word_places(self.tokenizer, some)
            words_of = word_sums(states, places.to(self.device))
            lasts = places.amax(dim=1).tolist()
            # Without [CLS], the first word, and [SEP], the last.
            for vector, own, last in zip(whole, words_of, lasts, strict=True):
                found.append(torch.cat([vector[None], own[1:last]]))
        if not found:
            return torch.zeros(0, 1, self.dim, device=self.device)
        empty = next((n for n, words in enumerate(found, start=1) if len(words) < 2), None)
        if empty is not None:
            raise UserError(f"Sentence {empty} holds no word of letters or digits; write one.")
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True)

    def attention(self, regions: Tensor, words: Tensor) -> Tensor:
        """How each word spreads over the regions: ``[B, W, N]``, each row sums to one.

        Args:
            regions: ``[B, N, D]``.
            words: those of one sentence ``[L, D]``; padding is left out.
        """
        shares = (regions @ kept_words(words).T).softmax(dim=-1)
        return (SHARPNESS * shares).softmax(dim=1).transpose(1, 2)

    def score(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """Scores ``[B, T]`` in [-1, 1] of images and sentences ``[T, 1 + L, D]``."""
        regions = features.regions
        best = []
        for words in sentences[:, 1:]:
            seen = self.attention(regions, words) @ regions
            best.append(F.cosine_similarity(seen, kept_words(words), dim=-1).amax(dim=1))
        local = torch.stack(best, dim=1) if best else regions.new_zeros(len(regions), 0)
        if self.by == "local":
            return local
        if features.whole is None:
            raise ValueError("expected features with 'whole'; these are of another model")
        return (LOCAL * local + features.whole @ sentences[:, 0].T) / (LOCAL + 1)

    def region_scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """Mean over a sentence's words of their attention: ``[B, T, N]``, each map sums to one."""
        maps = [self.attention(features.regions, w).mean(dim=1) for w in sentences[:, 1:]]
        return torch.stack(maps, dim=1)


def kept_words(words: Tensor) -> Tensor:
    """The words without the padding, which is exactly zero."""
    return words[words.abs().sum(dim=-1) > 0]
