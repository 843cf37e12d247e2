"""The batch that every objective takes: similarities, and what is known beside them, checked."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, Direction, LossBatch, Side


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


class ContrastiveBatch(LossBatch):
    """The similarities of one batch, with optional fields that objectives read.

    Half-precision similarities are raised to float32: the objectives compute in float32 or
    better, also under autocast. ``batch["labels"]`` gives an optional field.

    Args:
        similarity: ``[I, T]`` scores of I images and T sentences on the cosine scale [-1, 1].
        scale: scalar ``g2`` in [1, 100] that multiplies them.
        image_of_sentence: ``[T]`` index of each sentence's own image.
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
        fields["image_of_sentence"] = image_of_sentence
        self.fields = {name: value for name, value in fields.items() if value is not None}
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

    @property
    def counts(self) -> tuple[int, int]:
        """I and T, of all processes where the batch is a process's share."""
        images, sentences = self.similarity.shape
        return images, sentences

    def loss_of(self, per_anchor: Tensor) -> Tensor:
        """The loss: the mean over the anchors of all processes."""
        return per_anchor.mean()

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


def rows_of(logits: Tensor, rows: Tensor, batch: ContrastiveBatch, side: Side) -> Anchors:
    """Sentences or views ``rows`` ``[A]`` as anchors, or the sentences' images (``image``)."""
    columns = torch.arange(logits.shape[1], device=logits.device)
    if side == "view":
        images, column, candidates = rows, (rows + len(columns) // 2) % len(columns), columns
    elif side == "image":
        images, column, candidates = batch.owners[rows], rows, batch.owners
    else:
        images, candidates = batch.owners[rows], columns
        column = images
    others = candidates[None, :] != images[:, None]
    others.scatter_(1, column[:, None], False)  # the other view is no negative
    return Anchors(
        logits=logits,
        positive=logits.gather(1, column[:, None]).squeeze(1),
        negatives=others,
        scale=batch.scale,
        positive_column=column,
        rows=rows,
        side=side,
        images=images,
        candidates=candidates,
        others=others,
    )


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
