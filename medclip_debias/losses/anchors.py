"""What a loss reads: the anchors of a batch, and what is known beside their similarities."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

Direction = Literal["text_to_image", "image_to_text", "symmetric"]
Side = Literal["text", "image", "view"]
SIDES: tuple[Side, ...] = ("text", "image", "view")
"""What anchors are; their places number streams of random numbers."""


@dataclass(frozen=True)
class Anchors:
    """One row an anchor: its candidates' logits, its positive, its negatives.

    Attributes:
        logits: ``[A, C]`` scaled similarities ``s``.
        positive: ``[A]`` logit of the positive, ``s+``.
        negatives: ``[A, C]`` bool.
        scale: scalar ``g2``.
        positive_column: ``[A]`` of the positive among the candidates.
        rows: ``[A]`` index of each anchor's sentence (for ``view`` anchors, of the view).
        side: ``text`` (candidates are images), ``image`` (sentences) or ``view`` (views).
        images: ``[A]`` image (or view) of each anchor.
        candidates: ``[C]`` image (or view) of each candidate.
        others: ``[A, C]`` bool, the negatives before any policy.
        weights: ``[A, C]`` weight ``W >= 0`` of each negative; None is 1 everywhere.
        positives: ``[A, C]`` bool, all ``v_m`` of the debiased loss; None is the positive alone.
    """

    logits: Tensor
    positive: Tensor
    negatives: Tensor
    scale: Tensor
    positive_column: Tensor
    rows: Tensor
    side: Side
    images: Tensor
    candidates: Tensor
    others: Tensor
    weights: Tensor | None = None
    positives: Tensor | None = None

    @property
    def is_positive(self) -> Tensor:
        """``[A, C]`` bool, True at each anchor's positive."""
        columns = torch.arange(self.logits.shape[1], device=self.logits.device)
        return columns[None, :] == self.positive_column[:, None]

    @property
    def mass(self) -> Tensor:
        """``[A]`` total weight of the negatives, ``N`` when all weights are 1."""
        if self.weights is None:
            return self.negatives.sum(dim=1).to(self.logits.dtype)
        return (self.weights * self.negatives).sum(dim=1)

    @property
    def relative_logits(self) -> Tensor:
        """``[A, C]`` logits minus the positive's, ``s - s+``."""
        return self.logits - self.positive[:, None]

    def weighted_logits(self, logits: Tensor | None = None) -> Tensor:
        """``[A, C]`` ``logits`` (or `relative_logits`) plus ``log W`` at each negative."""
        logits = self.relative_logits if logits is None else logits
        if self.weights is None:
            return logits
        return logits + torch.where(self.negatives, self.weights, 1.0).log()


class LossBatch:
    """The similarities of one batch and its optional fields, as losses read them.

    Attributes:
        similarity: ``[I, T]`` scores of I images and T sentences on the cosine scale [-1, 1].
        scale: scalar ``g2`` in [1, 100] that multiplies them.
        fields: those of `medclip_debias.losses.batch.FIELDS` that are known.
    """

    similarity: Tensor
    scale: Tensor
    fields: dict[str, Any]

    def anchors(self, direction: Direction) -> list[Anchors]:
        """The anchors of ``direction``: one set, or two for ``symmetric``."""
        raise NotImplementedError

    def __getitem__(self, name: str) -> Any:
        """The optional field ``name``, or a ValueError where the batch does not have it."""
        if name not in self.fields:
            raise ValueError(f"the batch lacks the field '{name}', which the objective reads")
        return self.fields[name]

    @property
    def owners(self) -> Tensor:
        """``[T]`` index of each sentence's own image."""
        return self.fields["image_of_sentence"]

    @property
    def study_of_image(self) -> Tensor | None:
        """``[I]`` number of each image's study; None where each image is a study of its own."""
        return self.fields.get("study_of_image")

    def total(self, value: Tensor) -> Tensor:
        """A sum over the batch's anchors, from that over this process's."""
        return value

    def mean(self, values: Tensor, where: Tensor | None = None) -> Tensor:
        """Mean of what belongs to the anchors, for diagnostics; 0 where there is nothing."""
        with torch.no_grad():
            values = values if values.is_floating_point() else values.to(self.similarity.dtype)
            counted = values.new_full((), values.numel())
            if where is not None:
                values, counted = values.where(where, 0.0), where.sum().to(values.dtype)
            total, count = self.total(torch.stack([values.sum(), counted]))
            return total / count.clamp(min=1)

    def generator(self, stream: int = 0) -> torch.Generator:
        """Random numbers by ``seed`` and ``stream`` alone, of the CPU: the same on every rank."""
        return torch.Generator().manual_seed((int(self["seed"]) * 1_000_003 + stream) % 2**62)


def same_study(anchors: Anchors, batch: LossBatch) -> Tensor:
    """``[A, C]`` bool: the candidate has the ``sample_ids`` of the anchor's image."""
    studies = batch["sample_ids"]
    same: Tensor = studies[anchors.images][:, None] == studies[anchors.candidates][None, :]
    if anchors.side == "view":  # a view is no candidate of its own
        same = same & (anchors.images[:, None] != anchors.candidates[None, :])
    return same


def masked_logsumexp(values: Tensor, mask: Tensor) -> Tensor:
    """``[A]`` log of the sum of ``exp(values)`` ``[A, C]`` where ``mask``.

    A row without any gets a number of no meaning with gradient 0 (that of nothing but -inf is NaN).
    """
    fill = torch.where(mask.any(dim=1), -torch.inf, 0.0).to(values.dtype)[:, None]
    return torch.logsumexp(torch.where(mask, values, fill), dim=1)
