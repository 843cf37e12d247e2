"""A model as an index takes it: what is stored of an image, and how it is scored.

A model of this project scores an image by its regions, and they are stored. A peer scores it by
one vector of the whole image, so that is all an index of it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from medclip_debias.config import Preprocessing
from medclip_debias.grounding.sentences import SentenceReader
from medclip_debias.models.interface import ImageTextModel, Tokenizer
from medclip_debias.models.load import load_model
from medclip_debias.models.peers.peer import Peer


class Searched(SentenceReader, Protocol):
    """What building and asking an index need of a model."""

    content_hash: str | None

    @property
    def preprocessing(self) -> Preprocessing:
        """Everything between an image file and `encode_images`."""

    @property
    def similarity(self) -> Callable[[Tensor, Tensor], Tensor]:
        """What the two encoders gave, to scores ``[B, T]``."""

    def encode_images(self, images: Tensor) -> Tensor:
        """Prepared uint8 ``[B, S, S]`` to unit vectors ``[B, N, D]``."""

    def encode_sentences(self, sentences: Sequence[str]) -> Tensor:
        """Sentences to unit vectors ``[T, D]``."""


class WholeImages:
    """A peer whose images are one unit vector each, at full precision: ``[B, 1, D]``."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self.content_hash = peer.content_hash

    @property
    def preprocessing(self) -> Preprocessing:
        """The authors'."""
        return self._peer.preprocessing

    @property
    def tokenizer(self) -> Tokenizer:
        """The authors'."""
        return self._peer.tokenizer

    @property
    def max_tokens(self) -> int:
        """Longest sentence that is read."""
        return self._peer.max_tokens

    @property
    def similarity(self) -> Callable[[Tensor, Tensor], Tensor]:
        """Cosines ``[B, T]`` of images ``[B, 1, D]`` and sentences ``[T, D]``."""
        return _cosines

    def encode_images(self, images: Tensor) -> Tensor:
        """Prepared uint8 ``[B, S, S]`` to ``[B, 1, D]``."""
        return self._peer.whole_images(self._peer.encode_images(images))[:, None]

    def encode_sentences(self, sentences: Sequence[str]) -> Tensor:
        """Sentences to ``[T, D]``."""
        return self._peer.encode_sentences(sentences)[:, : self._peer.settings.dim]


def _cosines(images: Tensor, sentences: Tensor) -> Tensor:
    return torch.nn.functional.normalize(images[:, 0], dim=-1) @ sentences.T


def load_searched(folder: Path, device: str | torch.device) -> tuple[Searched, tuple[int, int]]:
    """Read a model folder for an index.

    Returns:
        The model, and ``(N, D)``, how many vectors of which width are stored of an image.

    Raises:
        UserError: no whole model.
    """
    model: ImageTextModel = load_model(folder, device)
    if isinstance(model, Peer):
        return WholeImages(model), (1, model.settings.dim)
    rows, columns = model.grid.shape
    return model, (rows * columns, int(model.settings.dim))  # type: ignore[attr-defined]
