"""What every objective takes and returns, and the register that finds them.

An objective is one file: a settings class with its ``kind``, and an `Objective` subclass.
Importing the file is all the registration there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from medclip_debias.config import Settings


@dataclass(frozen=True)
class ContrastiveBatch:
    """The similarities of one batch, and what an objective may need beside them.

    Attributes:
        similarity: ``[I, T]`` scores of I images and T sentences on the cosine scale [-1, 1].
        scale: scalar ``g2`` in [1, 100] that multiplies them.
        image_of_sentence: ``[T]`` index of each sentence's own image; by default sentence j
            belongs to image j.
        log_prob: ``[T]`` log probability of each sentence under a language model.
        eta: ``[T]`` class probability of each sentence, when it is given by a table.
    """

    similarity: Tensor
    scale: Tensor
    image_of_sentence: Tensor | None = None
    log_prob: Tensor | None = None
    eta: Tensor | None = None

    def __post_init__(self) -> None:
        images, sentences = self.similarity.shape
        if self.image_of_sentence is None:
            if images != sentences:
                raise ValueError(
                    f"{sentences} sentences and {images} images: say in image_of_sentence which "
                    "image each sentence belongs to"
                )
            own = torch.arange(images, device=self.similarity.device)
            object.__setattr__(self, "image_of_sentence", own)
        for name in ("image_of_sentence", "log_prob", "eta"):
            value = getattr(self, name)
            if value is not None and value.shape != (sentences,):
                raise ValueError(f"{name} has shape {tuple(value.shape)}, expected ({sentences},)")
        for name in ("similarity", "scale", "log_prob", "eta"):
            value = getattr(self, name)
            if value is not None and not torch.isfinite(value).all():
                raise FloatingPointError(f"'{name}' holds a NaN or an infinity")

    @property
    def owners(self) -> Tensor:
        """``image_of_sentence``, never None."""
        assert self.image_of_sentence is not None
        return self.image_of_sentence


@dataclass(frozen=True)
class LossOutput:
    """Per-anchor losses ``[A]`` and named scalar diagnostics; ``loss`` is their mean.

    An anchor without any negative is an explicit zero and counts in the mean.
    """

    per_anchor: Tensor
    diagnostics: dict[str, Tensor] = field(default_factory=dict)

    @property
    def loss(self) -> Tensor:
        """Mean over the anchors: a scalar."""
        return self.per_anchor.mean()


@dataclass(frozen=True)
class Anchors:
    """One row an anchor: its candidates' logits, its positive, its negatives.

    Attributes:
        logits: ``[A, C]`` scaled similarities ``s``.
        positive: ``[A]`` logit of the positive, ``s+``.
        negatives: ``[A, C]`` bool, True where the candidate is a negative.
        scale: scalar ``g2``.
    """

    logits: Tensor
    positive: Tensor
    negatives: Tensor
    scale: Tensor


def text_anchors(batch: ContrastiveBatch) -> Anchors:
    """Each sentence against the batch's images; its own image is the positive."""
    logits = (batch.similarity * batch.scale).T
    candidates = torch.arange(logits.shape[1], device=logits.device)
    negatives = candidates[None, :] != batch.owners[:, None]
    positive = logits.gather(1, batch.owners[:, None]).squeeze(1)
    return Anchors(logits, positive, negatives, batch.scale)


def image_anchors(batch: ContrastiveBatch) -> Anchors:
    """Each sentence's image against the batch's sentences.

    One anchor for each pair of an image and a sentence of it; the image's other sentences are
    neither positive nor negative.
    """
    logits = (batch.similarity * batch.scale)[batch.owners]
    negatives = batch.owners[None, :] != batch.owners[:, None]
    return Anchors(logits, logits.diagonal(), negatives, batch.scale)


class LossSettings(Settings):
    """Base of every objective's settings; each subclass names its ``kind``."""

    kind: str = ""


class Objective(nn.Module):
    """Base of every objective.

    Class attributes:
        kind: name in ``loss.kind``.
        settings_class: its validated settings.
        formula: one line.
        paper: where it comes from.
    """

    kind: ClassVar[str]
    settings_class: ClassVar[type[LossSettings]]
    formula: ClassVar[str]
    paper: ClassVar[str]
    register: ClassVar[dict[str, type[Objective]]] = {}

    def __init__(self, settings: Any = None) -> None:
        super().__init__()
        self.settings = settings or self.settings_class()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.register[cls.kind] = cls

    @property
    def requires(self) -> frozenset[str]:
        """Optional fields of the batch that this objective, so set, reads."""
        return frozenset()

    def forward(self, batch: ContrastiveBatch) -> LossOutput:
        """Per-anchor losses of one batch."""
        raise NotImplementedError
