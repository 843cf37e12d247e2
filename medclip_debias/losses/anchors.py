"""Anchors: each against its candidates, one of which is its positive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

Direction = Literal["text_to_image", "image_to_text", "symmetric"]


class Scores(Protocol):
    """What anchors read of a batch (`medclip_debias.losses.batch.ContrastiveBatch`)."""

    @property
    def similarity(self) -> Tensor:
        """``[I, T]`` on the cosine scale."""

    @property
    def scale(self) -> Tensor:
        """Scalar ``g2``."""

    @property
    def owners(self) -> Tensor:
        """``[T]`` index of each sentence's own image."""

    @property
    def study_of_image(self) -> Tensor | None:
        """``[I]`` number of each image's study."""

    def needed(self, name: str, reader: str) -> Any:
        """The optional field ``name``, or an error that says who reads it."""


@dataclass(frozen=True)
class Anchors:
    """One row an anchor: its candidates' logits, its positive, its negatives.

    Attributes:
        logits: ``[A, C]`` scaled similarities ``s``.
        positive: ``[A]`` logit of the positive, ``s+``.
        negatives: ``[A, C]`` bool, True where the candidate is a negative.
        scale: scalar ``g2``.
        own: ``[A]`` column of the positive.
        rows: ``[A]`` what each anchor is: index of its sentence in the batch (for ``view``
            anchors, of the view). An image anchor is the pair of an image and a sentence of it.
        columns: ``[C]`` what each candidate is: index of an image, a sentence or a view.
        side: what the anchors are: ``text`` (candidates are images), ``image`` (candidates are
            sentences) or ``view`` (candidates are views).
        weights: ``[A, C]`` weight ``W >= 0`` of each negative; None is 1 everywhere.
        positives: ``[A, C]`` bool, all ``v_m`` of the debiased loss; None is the positive alone.
    """

    logits: Tensor
    positive: Tensor
    negatives: Tensor
    scale: Tensor
    own: Tensor
    rows: Tensor
    columns: Tensor
    side: Literal["text", "image", "view"]
    weights: Tensor | None = None
    positives: Tensor | None = None

    @property
    def is_own(self) -> Tensor:
        """``[A, C]`` bool, True at each anchor's positive."""
        columns = torch.arange(self.logits.shape[1], device=self.logits.device)
        return columns[None, :] == self.own[:, None]

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
        """``[A, C]`` logits plus ``log W`` at each negative; elsewhere as they are.

        ``masked_logsumexp(anchors.weighted_logits(), anchors.negatives)`` is the logarithm of
        ``sum_n W_n exp(s_n - s+)``.

        Args:
            logits: ``[A, C]``; by default `relative_logits`.

        Example:
            >>> one = torch.zeros(1)
            >>> anchors = Anchors(
            ...     torch.zeros(1, 3), one, torch.tensor([[False, True, True]]), one, one.long(),
            ...     one.long(), torch.arange(3), "text", weights=torch.tensor([[0.0, 1.0, 4.0]]),
            ... )  # fmt: skip
            >>> anchors.weighted_logits().exp()
            tensor([[1., 1., 4.]])
        """
        given = self.relative_logits if logits is None else logits
        if self.weights is None:
            return given
        return given + torch.where(self.negatives, self.weights, 1.0).log()

    def images(self, batch: Scores) -> tuple[Tensor, Tensor]:
        """Image (or view) index of each anchor ``[A]`` and of each candidate ``[C]``."""
        if self.side == "view":
            return self.rows, self.columns
        candidates = self.columns if self.side == "text" else batch.owners[self.columns]
        return batch.owners[self.rows], candidates

    def between_texts(self, matrix: Tensor, batch: Scores) -> Tensor:
        """``[A, C]`` entries of a matrix over sentences ``[T, T]``, for anchor and candidate.

        A candidate image is known by its sentences: the largest entry of them counts, since one
        sentence in common is enough to make it a false negative; 0 where it has none. With
        ``study_of_image`` they are those of all images of its study, which one report describes.
        """
        if self.side != "text":
            return matrix[self.rows][:, self.columns]
        chosen = matrix[self.rows]
        place = batch.owners
        if batch.study_of_image is not None:  # a study's first image stands for all of them
            first = _first_equal(batch.study_of_image)
            place = first[place]
        empty = chosen.new_zeros(self.logits.shape)
        place = place[None, :].expand_as(chosen)
        largest = empty.scatter_reduce(1, place, chosen, "amax", include_self=False)
        return largest if batch.study_of_image is None else largest[:, first]


def _first_equal(values: Tensor) -> Tensor:
    """``[n]`` index of the first entry that equals each one."""
    return (values[:, None] == values[None, :]).to(torch.uint8).argmax(dim=1)


def text_anchors(batch: Scores) -> Anchors:
    """Each sentence against the batch's images; its own image is the positive."""
    logits = (batch.similarity * batch.scale).T
    return text_rows(logits, torch.arange(len(logits), device=logits.device), batch)


def text_rows(logits: Tensor, rows: Tensor, batch: Scores) -> Anchors:
    """Some of the batch's sentences as anchors.

    Args:
        logits: ``[A, I]`` of them and all images.
        rows: ``[A]`` which sentences they are.
        batch: of ``rows``.
    """
    candidates = torch.arange(logits.shape[1], device=logits.device)
    own = batch.owners[rows]
    negatives = candidates[None, :] != own[:, None]
    positive = logits.gather(1, own[:, None]).squeeze(1)
    return Anchors(logits, positive, negatives, batch.scale, own, rows, candidates, "text")


def image_anchors(batch: Scores) -> Anchors:
    """Each sentence's image against the batch's sentences.

    One anchor for each pair of an image and a sentence of it; the image's other sentences are
    neither positive nor negative.
    """
    logits = (batch.similarity * batch.scale)[batch.owners]
    return image_rows(logits, torch.arange(len(logits), device=logits.device), batch)


def image_rows(logits: Tensor, rows: Tensor, batch: Scores) -> Anchors:
    """The images of some of the batch's sentences as anchors.

    Args:
        logits: ``[A, T]`` of them and all sentences.
        rows: ``[A]`` which sentences they are.
        batch: of ``rows``.
    """
    negatives = batch.owners[None, :] != batch.owners[rows][:, None]
    pairs = torch.arange(logits.shape[1], device=logits.device)
    positive = logits.gather(1, rows[:, None]).squeeze(1)
    return Anchors(logits, positive, negatives, batch.scale, rows, rows, pairs, "image")


def view_anchors(batch: Scores) -> Anchors:
    """Each of 2n views against all others; the other view of its image is the positive."""
    logits = batch.similarity * batch.scale
    return view_rows(logits, torch.arange(len(logits), device=logits.device), batch.scale)


def view_rows(logits: Tensor, rows: Tensor, scale: Tensor) -> Anchors:
    """Some views as anchors: ``rows`` ``[A]`` of 2n, with their logits ``[A, 2n]``."""
    count = logits.shape[1]
    views = torch.arange(count, device=logits.device)
    other = (rows + count // 2) % count
    negatives = (views[None, :] != rows[:, None]) & (views[None, :] != other[:, None])
    positive = logits.gather(1, other[:, None]).squeeze(1)
    return Anchors(logits, positive, negatives, scale, other, rows, views, "view")


def same_study(anchors: Anchors, batch: Scores, reader: str = "same_study") -> Tensor:
    """``[A, C]`` bool: the candidate has the ``sample_ids`` of the anchor's image.

    Args:
        anchors: of ``batch``.
        batch: with ``sample_ids``.
        reader: who asks, for the message when there are none.
    """
    studies = batch.needed("sample_ids", reader)
    rows, columns = anchors.images(batch)
    same: Tensor = studies[rows][:, None] == studies[columns][None, :]
    if anchors.side == "view":  # a view is no candidate of its own
        same = same & (anchors.rows[:, None] != anchors.columns[None, :])
    return same


def masked_logsumexp(values: Tensor, mask: Tensor) -> Tensor:
    """``[A]`` log of the sum of ``exp(values)`` ``[A, C]`` where ``mask``.

    A row without any gets a finite number with gradient 0: logsumexp of nothing but -inf has a
    NaN gradient. The caller must not use that number.
    """
    fill = torch.where(mask.any(dim=1), -torch.inf, 0.0).to(values.dtype)[:, None]
    return torch.logsumexp(torch.where(mask, values, fill), dim=1)
