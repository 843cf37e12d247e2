"""What evaluation, grounding and search ask of a model, as a protocol.

`medclip_debias.models.dual_encoder.DualEncoder` satisfies it, and so does every peer
(`medclip_debias.models.peers`): `medclip_debias.models.load.load_model` gives either as one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from medclip_debias.config import Preprocessing, Settings
from medclip_debias.errors import UserError
from medclip_debias.models.features import ImageFeatures
from medclip_debias.models.region_grid import RegionGrid

MapKind = Literal["cosine", "attention", "gradcam", "occlusion"]
SentenceRows: TypeAlias = tuple[int | None, int | None]
TextForm = Literal["vector", "words", "none"]
Head: TypeAlias = nn.Module | nn.Parameter


class Layered(Protocol):
    """An encoder as a stem, layers upon it, and what comes after the last.

    So are this project's encoders. A peer's tower, which maps into the shared space itself, says
    with what, too (`Tower`): that is all that training asks of a peer.
    """

    @property
    def layers(self) -> list[nn.Module]:
        """The lowest first."""

    @property
    def above(self) -> list[nn.Module]:
        """After the last, as a last norm; it learns as the last layer does."""


class Tower(Layered, Protocol):
    """An encoder that ends in the space of images and sentences."""

    @property
    def heads(self) -> list[Head]:
        """The maps into the shared space, which train even where the encoder does not."""


class Tokenizer(Protocol):
    """What a model reads sentences with."""

    def encode(self, texts: Sequence[str], max_tokens: int) -> list[list[int]]:
        """Token ids of each sentence, with special tokens, cut at ``max_tokens``."""


class ImageTextModel(Protocol):
    """An image-text model in evaluation mode.

    Attributes:
        prompts: prompt sets for zero-shot classification, by name.
        provenance: where the weights come from.
        content_hash: 16 hex digits naming the folder it was loaded from, or None.
        self_test: what `medclip_debias.models.golden.self_test` found at loading, or None.
    """

    prompts: dict[str, Any]
    provenance: dict[str, Any]
    content_hash: str | None
    self_test: dict[str, Any] | None

    @property
    def settings(self) -> Settings:
        """Architecture."""

    @property
    def preprocessing(self) -> Preprocessing:
        """Everything between an image file and `encode_images`."""

    @property
    def tokenizer(self) -> Tokenizer:
        """What sentences are read with."""

    @property
    def max_tokens(self) -> int:
        """Longest sentence that is read; the rest of a longer one is not seen."""

    @property
    def device(self) -> torch.device:
        """Where the parameters live."""

    @property
    def dim(self) -> int:
        """D, the width of the shared space."""

    @property
    def grid(self) -> RegionGrid:
        """Where the regions of one input lie."""

    @property
    def has_whole(self) -> bool:
        """Whether `encode_images` gives ``whole``, from which `score` is then computed."""

    @property
    def whole_alone(self) -> bool:
        """Whether `score` reads nothing but ``whole``, so that regions need not be kept for it."""

    @property
    def sentence_rows(self) -> SentenceRows | None:
        """Of a sentence's ``[K, D]``, the row that lies with whole images, and with regions.

        A row is None where sentences and those vectors are not to be compared. None altogether
        where a sentence has one vector, or words of which none stands for it.
        """

    @property
    def learned_scale(self) -> float | None:
        """What scores were multiplied by in training, in [1, 100]; None where it is not known."""

    @property
    def text_form(self) -> TextForm:
        """What `encode_sentences` gives of each: one ``vector``, those of its ``words``, nothing.

        Only with vectors can sentences be kept, compared with each other, or indexed.
        """

    @property
    def map_kind(self) -> MapKind:
        """What the maps of `region_scores` hold: cosines, or shares of a sentence's attention."""

    def encode_images(self, images: Tensor) -> ImageFeatures:
        """Features of prepared images, uint8 ``[B, S, S]``."""

    def encode_sentences(self, sentences: str | Sequence[str]) -> Tensor:
        """Sentences to unit vectors ``[T, D]``; a string is one sentence.

        A model that scores a sentence by several vectors gives ``[T, K, D]``, with rows of zeros
        behind those of a sentence that has fewer than K.
        """

    def score(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """Image-sentence scores ``[B, T]`` in [-1, 1], from what the two encoders gave."""

    def region_scores(self, features: ImageFeatures, sentences: Tensor) -> Tensor:
        """A map over the regions for every image and sentence ``[B, T, N]``, of `map_kind`."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The weights."""


def compares(model: ImageTextModel, beside: Literal["images", "regions"]) -> bool:
    """Whether a cosine of a sentence with whole images, or with regions, says something."""
    rows = model.sentence_rows
    return rows is None or rows[beside == "regions"] is not None


def need_vectors(model: ImageTextModel, verb: str, *, several: bool = False) -> None:
    """Refuse a model of which a sentence has no single vector.

    Args:
        model: to be asked.
        verb: what shall be done with it.
        several: whether ``verb`` can do with the rows that ``sentence_rows`` names.

    Raises:
        UserError: saying what ``verb`` would need.
    """
    if model.text_form == "none":
        raise UserError(
            f"'{verb}' needs sentences, and this model reads images alone; see 'probe'."
        )
    if model.text_form == "words" and not several:
        raise UserError(
            f"'{verb}' needs one vector a sentence, and this model scores by words and regions; "
            "import it with --score whole."
        )
    if model.sentence_rows is not None and not several:
        raise UserError(
            f"'{verb}' needs one vector a sentence, and this model scores a sentence by several, "
            "or by more than a cosine; leave that out for it."
        )
