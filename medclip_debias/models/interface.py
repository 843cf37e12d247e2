"""What evaluation and grounding ask of a model: `DualEncoder`'s interface, as a protocol.

`DualEncoder` satisfies it, and so does every peer (`medclip_debias.models.peers`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from medclip_debias.config import Preprocessing, Settings
from medclip_debias.models.region_grid import RegionGrid

if TYPE_CHECKING:
    from medclip_debias.models.dual_encoder import DualEncoder


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
    """

    prompts: dict[str, Any]
    provenance: dict[str, Any]
    content_hash: str | None

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
    def grid(self) -> RegionGrid:
        """Where the regions of one input lie."""

    def encode_images(self, images: Tensor) -> Tensor:
        """Prepared uint8 ``[B, S, S]`` to unit vectors ``[B, N, D]``, N = rows x columns."""

    def encode_sentences(self, sentences: Sequence[str]) -> Tensor:
        """Sentences to unit vectors ``[T, D]``."""

    @property
    def similarity(self) -> Callable[[Tensor, Tensor], Tensor]:
        """What `encode_images` and `encode_sentences` gave, to scores ``[B, T]`` in [-1, 1]."""

    def region_scores(self, regions: Tensor, sentences: Tensor) -> Tensor:
        """Cosines ``[B, T, N]`` of regions and sentences."""

    def parameters(self, recurse: bool = True) -> Iterator[nn.Parameter]:
        """The weights."""


if TYPE_CHECKING:

    def _as_interface(model: DualEncoder) -> ImageTextModel:
        """`DualEncoder` is an `ImageTextModel`: the type checker proves it here."""
        return model
