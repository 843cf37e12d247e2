"""The batch that every objective takes: similarities, what is known beside them, anchors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

Direction = Literal["text_to_image", "image_to_text", "symmetric"]
Side = Literal["text", "image", "view"]
SIDES: tuple[Side, ...] = ("text", "image", "view")
"""What anchors are; their places number streams of random numbers."""


class Field(NamedTuple):
    """What a field of the batch holds.

    ``axis``: one row an image, one a sentence, sentences by sentences, or one value for all.
    ``columns``: letter for any number of columns, or the field that names them. ``blanks``: NaN is
    a value.
    """

    axis: Literal["image", "text", "pair", "batch"]
    holds: Literal["numbers", "integers", "truth", "value"] = "numbers"
    columns: str | None = None
    blanks: bool = False


FIELDS: dict[str, Field] = {
    "image_of_sentence": Field("text", "integers"),  # by default sentence j belongs to image j
    "study_of_image": Field("image", "integers"),  # by default each image is a study of its own
    "log_prob": Field("text"),  # of each sentence under a language model
    "eta": Field("text"),  # class probability of each sentence, from a table
    "text_ids": Field("text", "integers"),  # equal text, equal number
    "sample_ids": Field("image", "integers"),  # index of the study in the training set
    "labels": Field("image", columns="label_names", blanks=True),  # 1, 0, -1 uncertain, NaN
    "label_names": Field("batch", "value"),
    "text_similarity": Field("pair"),  # cosines of frozen text embeddings
    "graph": Field("pair"),  # any other similarity of the samples, for X-CLR
    "keywords": Field("text", "integers"),  # class of each sentence, 0 for none
    # Whether an image is known to agree with each of the run's X sentences; column text_ids[j].
    "agreement": Field("image", "truth", columns="X"),
    # What the image's report states of P propositions: 100 true, -100 false, 0 unknown.
    "stated": Field("image", "integers", columns="P"),
    # p + 1 where the sentence states proposition p true, -(p + 1) where false, 0 for none.
    "claims": Field("text", "integers", columns="L"),
    "seed": Field("batch", "value"),  # what random choices of this step derive from
    "done": Field("batch", "value"),  # share of the run's steps that lie before this one
}
"""Every optional field of the batch. Its checks, how it is gathered from several processes, how it
is repeated for two views and how a run looks it up (`medclip_debias.training.fields`) follow."""


class ContrastiveBatch:
    """The similarities of one batch, with optional fields that objectives read.

    Half-precision similarities are raised to float32: the objectives compute in float32 or
    better, also under autocast. ``batch["labels"]`` gives an optional field.

    Args:
        similarity: ``[I, T]`` scores of I images and T sentences on the cosine scale [-1, 1].
        scale: scalar ``g2`` in [1, 100] that multiplies them.
        image_of_sentence: ``[T]`` index of each sentence's own image.
        study_of_image: ``[I]`` number of each image's study.
        **fields: those of `FIELDS`: ``[T]`` with the axis ``text``, ``[I]`` with ``image``,
            ``[T, T]`` with ``pair``; a last axis for columns.

    Raises:
        ValueError: the batch is empty, or a field's shape, type or range is wrong.
        FloatingPointError: a field holds NaN or an infinite number.
    """

    def __init__(
        self,
        similarity: Tensor,
        scale: Tensor | float,
        image_of_sentence: Tensor | None = None,
        study_of_image: Tensor | None = None,
        **fields: Any,
    ) -> None:
        scale = scale if isinstance(scale, Tensor) else similarity.new_tensor(scale)
        half = (torch.bfloat16, torch.float16)
        self.similarity = similarity.float() if similarity.dtype in half else similarity
        self.scale = scale.float() if scale.dtype in half else scale
        images, sentences = self.counts
        if not (images and sentences):
            raise ValueError(f"the batch is empty: similarity has shape {(images, sentences)}")
        if image_of_sentence is None:
            if images != sentences:
                raise ValueError("say in image_of_sentence which image each sentence belongs to")
            image_of_sentence = torch.arange(images, device=similarity.device)
        check_names(type(self).__name__, fields)
        fields |= {"image_of_sentence": image_of_sentence, "study_of_image": study_of_image}
        self.fields = {name: value for name, value in fields.items() if value is not None}
        self.owners, self.study_of_image = image_of_sentence, study_of_image
        if scale.ndim:
            raise ValueError(f"scale has shape {tuple(scale.shape)}, expected ()")
        for name in self.fields:
            self._check(name)
        ranges = {"image_of_sentence": (images, "images")}
        if {"agreement", "text_ids"} <= self.fields.keys():
            ranges["text_ids"] = self["agreement"].shape[1], "columns of agreement"
        self._check_values(ranges)

    def _check(self, name: str) -> None:
        (axis, holds, columns, _), value = FIELDS[name], self.fields[name]
        if holds == "value":
            return
        images, sentences = self.counts
        expected: list[int | str] = [images if axis == "image" else sentences]
        expected += [sentences] if axis == "pair" else []
        if columns is not None:
            expected.append(len(self.fields[columns]) if columns in self.fields else columns)
        shape = tuple(value.shape)
        fits = (want in (size, columns) for want, size in zip(expected, shape, strict=False))
        if len(shape) != len(expected) or not all(fits):
            wanted = ", ".join(map(str, expected))
            raise ValueError(f"{name} has shape {shape}, expected ({wanted})")
        if holds == "truth" and value.dtype != torch.bool:
            raise ValueError(f"{name} must hold true or false, it holds {value.dtype}")
        if holds == "integers" and (value.is_floating_point() or value.dtype == torch.bool):
            raise ValueError(f"{name} must hold integers, it holds {value.dtype}")

    def _check_values(self, ranges: dict[str, tuple[int, str]]) -> None:
        """Refuse numbers that are none, and integers outside ``ranges``; waits for a GPU once."""
        numbers = {n: v for n, v in self.fields.items() if FIELDS[n].holds == "numbers"}
        numbers |= {"similarity": self.similarity, "scale": self.scale}
        blanks = {name for name in self.fields if FIELDS[name].blanks}
        wrong = {n: v.isinf() if n in blanks else ~v.isfinite() for n, v in numbers.items()}
        wrong |= {n: (self[n] < 0) | (self[n] >= count) for n, (count, _) in ranges.items()}
        device = self.similarity.device
        if not torch.stack([where.any().to(device) for where in wrong.values()]).any():
            return
        name = next(name for name, where in wrong.items() if where.any())
        if name not in ranges:
            what = "an infinity" if name in blanks else "a NaN or an infinity"
            raise FloatingPointError(f"'{name}' holds {what}")
        first, (count, of) = int(self[name][wrong[name]][0]), ranges[name]
        raise ValueError(f"{name} holds {first}, but the batch has {count} {of}")

    @classmethod
    def from_embeddings(
        cls, images: Tensor, sentences: Tensor, scale: Tensor | float, **fields: Any
    ) -> ContrastiveBatch:
        """Make a batch from embeddings: the cosine of every image with every sentence.

        Images ``[I, D]`` and sentences ``[T, D]`` are brought to unit length, in float32 or better;
        ``scale`` is ``g2``, for instance ``model.logit_scale.exp()`` of open_clip.

        Example:
            >>> batch = ContrastiveBatch.from_embeddings(torch.eye(3), torch.eye(3), 14.0)
            >>> batch.similarity.diagonal()
            tensor([1., 1., 1.])
        """
        return cls(cosine(images, sentences), scale, **fields)

    def __getitem__(self, name: str) -> Any:
        """The optional field ``name``, or a ValueError where the batch does not have it."""
        if name not in self.fields:
            raise ValueError(f"the batch lacks the field '{name}', which the objective reads")
        return self.fields[name]

    @property
    def counts(self) -> tuple[int, int]:
        """I and T, of all processes where the batch is a process's share."""
        images, sentences = self.similarity.shape
        return images, sentences

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

    def loss_of(self, per_anchor: Tensor) -> Tensor:
        """The loss: the mean over the anchors of all processes."""
        return per_anchor.mean()

    def generator(self, stream: int = 0) -> torch.Generator:
        """Random numbers by ``seed`` and ``stream`` alone, of the CPU: the same on every rank."""
        return torch.Generator().manual_seed((int(self["seed"]) * 1_000_003 + stream) % 2**62)

    def anchors(self, direction: Direction) -> list[Anchors]:
        """The anchors of ``direction``: one set, or two for ``symmetric``.

        An image anchor is a pair; the image's other sentences are neither positive nor negative.
        """
        sets, texts = [], torch.arange(len(self.owners), device=self.owners.device)
        if direction != "image_to_text":
            sets.append(rows_of((self.similarity * self.scale).T, texts, self, "text"))
        if direction != "text_to_image":
            sets.append(rows_of((self.similarity * self.scale)[self.owners], texts, self, "image"))
        return sets


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


def rows_of(
    logits: Tensor, rows: Tensor, batch: ContrastiveBatch, side: Literal["text", "image"]
) -> Anchors:
    """The sentences ``rows`` ``[A]`` as anchors (``text``), or their images (``image``)."""
    images, column, candidates = batch.owners[rows], rows, batch.owners
    if side == "text":
        column, candidates = images, torch.arange(logits.shape[1], device=logits.device)
    others = candidates[None, :] != images[:, None]
    positive = logits.gather(1, column[:, None]).squeeze(1)
    scale = batch.scale
    return Anchors(logits, positive, others, scale, column, rows, side, images, candidates, others)


def same_study(anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
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


def check_names(reader: str, fields: Any) -> None:
    """Refuse a field that no batch has."""
    unknown = set(fields) - set(FIELDS)
    if unknown:
        raise TypeError(f"{reader} knows no field '{min(unknown)}'")


def cosine(rows: Tensor, columns: Tensor) -> Tensor:
    """Cosines of two sets of vectors, in float32 or better also under autocast."""
    with torch.autocast(rows.device.type, enabled=False):
        rows, columns = (x if x.dtype == torch.float64 else x.float() for x in (rows, columns))
        return F.normalize(rows, dim=-1) @ F.normalize(columns, dim=-1).T
