"""GLoRIA's local score (Huang et al. 2021, section 3.2): words attend to regions.

With words ``w`` and regions ``v`` as they leave the two towers (not of unit length): each region
shares its weight among the words, ``softmax over w of <v, w>``; each word takes its mean region by
``a = softmax over v of 4 times that weight`` (equations 4 and 5), ``c = sum of a v``; and an image
and a sentence are as alike as their best word, ``max over w of cos(w, c)``. That is the score of
the authors' ``get_local_similarities``, which returns 5 times it.

Two slips of the published code are not followed. It counts the letters of a sentence where words
are meant, so that [SEP] and padding take part. And it drops sentences of one word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

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
    from medclip_debias.models.interface import ImageTextModel, MapKind

SHARPNESS = 4.0
"""The published first temperature."""


class GloriaLocal:
    """GLoRIA by its local score, for `medclip_debias.grounding.ground`.

    Regions are as they leave the tower, and sentences ``[T, L, D]``: the vectors of their words,
    padded with zeros. Neither has unit length, so this is for grounding alone. All else is the
    peer's, the weights too; an `medclip_debias.models.interface.ImageTextModel`.

    Args:
        model: a GLoRIA that was imported.

    Attributes:
        peer: that GLoRIA.

    Raises:
        UserError: another model.
    """

    has_whole: ClassVar[bool] = False
    whole_alone: ClassVar[bool] = False
    sentence_rows: ClassVar[tuple[int, int] | None] = None
    map_kind: ClassVar[MapKind] = "attention"
    learned_scale: ClassVar[float | None] = None

    def __init__(self, model: ImageTextModel) -> None:
        if not isinstance(model, Peer) or model.settings.kind != "gloria":
            raise UserError("only GLoRIA has a local score, by attention from words to regions.")
        self.peer = model
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
        """Prepared uint8 ``[B, S, S]`` to the regions alone, of any length."""
        x = self.peer.normalise(images) if images.dtype == torch.uint8 else images
        return ImageFeatures(self.peer.image(x)[0])

    def encode_sentences(self, sentences: str | Sequence[str], batch_size: int = 64) -> Tensor:
        """Vectors of the words ``[T, L, D]``, L those of the longest sentence.

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
            places = word_places(self.tokenizer, some)
            words_of = word_sums(states, places.to(self.device))
            # Without [CLS], the first word, and [SEP], the last.
            found += [
                own[1:last] for own, last in zip(words_of, places.amax(dim=1).tolist(), strict=True)
            ]
        empty = next((n for n, words in enumerate(found, start=1) if not len(words)), None)
        if empty is not None:
            raise UserError(f"Sentence {empty} holds no word of letters or digits; write one.")
        return torch.nn.utils.rnn.pad_sequence(found, batch_first=True)

    def attention(self, regions: Tensor, words: Tensor) -> Tensor:
        """How each word spreads over the regions: ``[B, W, N]``, each row sums to one.

        Args:
            regions: ``[B, N, D]``.
            words: those of one sentence ``[L, D]``; padding is left out.
        """
        shares = (regions @ _kept(words).T).softmax(dim=-1)
        return (SHARPNESS * shares).softmax(dim=1).transpose(1, 2)

    def score(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """Local scores ``[B, T]`` in [-1, 1] of images and sentences ``[T, L, D]``."""
        regions = features.regions
        scores = [
            F.cosine_similarity(self.attention(regions, words) @ regions, _kept(words), dim=-1)
            for words in sentences
        ]
        return torch.stack([each.amax(dim=1) for each in scores], dim=1)

    def region_scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """Mean over a sentence's words of their attention: ``[B, T, N]``, each map sums to one."""
        maps = [self.attention(features.regions, words).mean(dim=1) for words in sentences]
        return torch.stack(maps, dim=1)


def _kept(words: Tensor) -> Tensor:
    """The words without the padding, which is exactly zero."""
    return words[words.abs().sum(dim=-1) > 0]
