# ruff: noqa: RUF009  (each call gives a field of the dataclass)
"""The batch that every objective takes, and the declaration of each of its fields.

A field is declared once, in `ContrastiveBatch`, with the axis that it runs along:

- ``image``: one row an image, ``text``: one entry a sentence, ``pair``: a matrix of sentences by
  sentences, ``whole``: one value for the batch.

Its shape check, how it is gathered from several processes (`medclip_debias.losses.distributed`),
how it is repeated for two views, and how a run looks it up (`medclip_debias.training.fields`)
follow from that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from medclip_debias.losses.anchors import (
    Anchors,
    Direction,
    image_anchors,
    text_anchors,
    view_anchors,
)

Axis = Literal["image", "text", "pair", "whole"]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


@dataclass(frozen=True)
class BatchField:
    """What is known of one field of the batch.

    Attributes:
        axis: what it has one row for.
        holds: ``numbers``, ``integers``, ``truth`` (true or false), or ``value`` (no tensor).
        columns: letter for the number of columns, for a matrix that may have any.
        names: field that names the columns, if the batch has it.
        blanks: NaN is a value, and only an infinity is refused.
    """

    axis: Axis
    holds: Literal["numbers", "integers", "truth", "value"] = "numbers"
    columns: str | None = None
    names: str | None = None
    blanks: bool = False

    def check(self, name: str, batch: ContrastiveBatch) -> None:
        """Check what ``batch`` has under ``name``.

        Raises:
            ValueError: its shape or type is wrong.
            FloatingPointError: it holds a number that is none.
        """
        value = getattr(batch, name)
        if value is None or self.holds == "value":
            return
        shape = tuple(value.shape)
        # A share of the batch has some rows of the matrix.
        expected = shape if name == "similarity" else self._shape(batch)
        alike = len(shape) == len(expected) and all(
            isinstance(want, str) or want == got for want, got in zip(expected, shape, strict=True)
        )
        if not alike:
            printed = ", ".join(map(str, expected)) + ("," if len(expected) == 1 else "")
            raise ValueError(f"{name} has shape {shape}, expected ({printed})")
        if self.holds == "truth" and value.dtype != torch.bool:
            raise ValueError(f"{name} must hold true or false, it holds {value.dtype}")
        if self.holds == "integers" and value.dtype not in _INTEGERS:
            raise ValueError(f"{name} must hold integers, it holds {value.dtype}")
        if self.holds == "numbers":
            self._check_numbers(name, value)

    def repeated(self, value: Any) -> Any:
        """``value`` of n images for the 2n views of them."""
        if value is None or self.axis == "whole":
            return value
        return value.repeat((2, 2) if self.axis == "pair" else (2,) + (1,) * (value.ndim - 1))

    def random(self, images: int, sentences: int, generator: torch.Generator) -> Tensor:
        """Some value of this field for so many images and sentences, to try an objective with.

        Numbers are float64 in [0, 1], integers lie below the number of rows, and a matrix with
        any number of columns has as many as there are images or sentences, whichever is more.
        """
        sizes = {"image": (images,), "text": (sentences,), "pair": (sentences, sentences)}
        shape: tuple[int, ...] = sizes.get(self.axis, ())
        shape = shape if self.columns is None else (*shape, max(images, sentences))
        if self.holds == "integers":
            return torch.randint(0, shape[0], shape, generator=generator)
        numbers = torch.rand(shape, generator=generator, dtype=torch.float64)
        return numbers < 0.5 if self.holds == "truth" else numbers

    def _shape(self, batch: ContrastiveBatch) -> tuple[int | str, ...]:
        images, sentences = batch.counts
        sizes = {"image": (images,), "text": (sentences,), "pair": (sentences, sentences)}
        rows: tuple[int | str, ...] = sizes.get(self.axis, ())
        if self.columns is None:
            return rows
        names = None if self.names is None else getattr(batch, self.names)
        return (*rows, self.columns if names is None else len(names))

    def _check_numbers(self, name: str, value: Tensor) -> None:
        if self.blanks:
            if torch.isinf(value).any():
                raise FloatingPointError(f"'{name}' holds an infinity")
        elif not torch.isfinite(value).all():
            raise FloatingPointError(f"'{name}' holds a NaN or an infinity")


def _along(axis: Axis, **more: Any) -> Any:
    """Declare an optional field of the batch: see `BatchField`."""
    return field(default=None, metadata={"declared": BatchField(axis, **more)})


@dataclass(frozen=True)
class ContrastiveBatch:
    """The similarities of one batch, and what an objective may need beside them.

    Half-precision similarities are raised to float32: the objectives compute in float32 or
    better, also under autocast.

    Attributes:
        similarity: ``[I, T]`` scores of I images and T sentences on the cosine scale [-1, 1].
        scale: scalar ``g2`` in [1, 100] that multiplies them.
        image_of_sentence: ``[T]`` index of each sentence's own image; by default sentence j
            belongs to image j.
        study_of_image: ``[I]`` number of each image's study, where several images of one study
            may be in the batch; by default each image is a study of its own. Then what a policy
            knows an image by is what all sentences of its study say.
        log_prob: ``[T]`` log probability of each sentence under a language model.
        eta: ``[T]`` class probability of each sentence, when it is given by a table.
        text_ids: ``[T]`` integer identity of each sentence: equal text, equal number.
        sample_ids: ``[I]`` index of each image's study in the training set (per-sample state).
        labels: ``[I, L]`` 1 present, 0 absent, -1 uncertain, NaN unmentioned.
        text_similarity: ``[T, T]`` cosine of frozen text embeddings.
        keywords: ``[T]`` keyword class of each sentence, 0 for none.
        label_names: names of the L label columns; without them a policy reads every column.
        graph: ``[T, T]`` any other similarity of the samples, for X-CLR's ``given`` graph.
        agreement: ``[I, X]`` bool, whether each image is known to agree with each of the run's X
            distinct sentences; sentence j of the batch has column ``text_ids[j]``.
        stated: ``[I, P]`` what the report of each image states about the run's P propositions, in
            hundredths: 100 certainly true, -100 certainly false, 0 unknown.
        claims: ``[T, L]`` claims of each sentence: ``p + 1`` where it states proposition p true,
            ``-(p + 1)`` where it states it false, 0 for none.
        seed: what random choices of this step derive from (`generator`).
        done: share of the run's steps that lie before this one, for whatever has a schedule.
    """

    similarity: Tensor
    scale: Tensor
    image_of_sentence: Tensor | None = _along("text", holds="integers")
    study_of_image: Tensor | None = _along("image", holds="integers")
    log_prob: Tensor | None = _along("text")
    eta: Tensor | None = _along("text")
    text_ids: Tensor | None = _along("text", holds="integers")
    sample_ids: Tensor | None = _along("image", holds="integers")
    labels: Tensor | None = _along("image", columns="L", names="label_names", blanks=True)
    text_similarity: Tensor | None = _along("pair")
    keywords: Tensor | None = _along("text", holds="integers")
    label_names: tuple[str, ...] | None = _along("whole", holds="value")
    graph: Tensor | None = _along("pair")
    agreement: Tensor | None = _along("image", holds="truth", columns="X")
    stated: Tensor | None = _along("image", holds="integers", columns="P")
    claims: Tensor | None = _along("text", holds="integers", columns="L")
    seed: int | None = _along("whole", holds="value")
    done: float | None = _along("whole", holds="value")

    def __post_init__(self) -> None:
        for name in ("similarity", "scale"):
            value = getattr(self, name)
            if value.dtype in (torch.bfloat16, torch.float16):
                object.__setattr__(self, name, value.float())
        images, sentences = self.counts
        if not (images and sentences):
            raise ValueError(
                f"the batch is empty: similarity has shape {(images, sentences)}, and a mean over "
                "no anchor is no number; leave such a batch out"
            )
        if self.image_of_sentence is None:
            if images != sentences:
                raise ValueError(
                    f"{sentences} sentences and {images} images: say in image_of_sentence which "
                    "image each sentence belongs to"
                )
            own = torch.arange(images, device=self.similarity.device)
            object.__setattr__(self, "image_of_sentence", own)
        for name, declared in FIELDS.items():
            declared.check(name, self)
        self._check_range("image_of_sentence", images, "images")
        if self.agreement is not None:
            self._check_range("text_ids", self.agreement.shape[1], "columns of agreement")
        if self.claims is not None and self.stated is not None and self.claims.numel():
            last, count = int(self.claims.abs().max()), self.stated.shape[1]
            if last > count:
                raise ValueError(f"claims holds {last}, but stated has {count} propositions")

    def _check_range(self, name: str, count: int, what: str) -> None:
        value = getattr(self, name)
        if value is None:
            return
        low, high = (int(end) for end in torch.aminmax(value))
        if low < 0 or high >= count:
            wrong = low if low < 0 else high
            raise ValueError(f"{name} holds {wrong}, but the batch has {count} {what}, from 0 on")

    @classmethod
    def from_embeddings(
        cls, images: Tensor, sentences: Tensor, scale: Tensor | float, **fields: Any
    ) -> ContrastiveBatch:
        """Batch of plain embeddings: cosine of every image with every sentence.

        Args:
            images: ``[I, D]``; brought to unit length, in float32 or better.
            sentences: ``[T, D]``, likewise.
            scale: ``g2``, for instance ``model.logit_scale.exp()`` of open_clip.
            **fields: any other attribute of the batch.

        Example:
            >>> batch = ContrastiveBatch.from_embeddings(torch.eye(3), torch.eye(3), 14.0)
            >>> batch.similarity.diagonal()
            tensor([1., 1., 1.])
        """
        return cls(_cosine(images, sentences), _scalar(scale, images), **fields)

    @property
    def counts(self) -> tuple[int, int]:
        """I and T, of all processes where the batch is a process's share."""
        images, sentences = self.similarity.shape
        return images, sentences

    def total(self, value: Tensor) -> Tensor:
        """A sum over the batch's anchors, from that over the anchors of this process."""
        return value

    def mean(self, values: Tensor) -> Tensor:
        """Mean of what belongs to the anchors, for diagnostics; 0 where there is nothing."""
        with torch.no_grad():
            found = torch.stack([values.sum(), values.new_tensor(values.numel())])
            whole, count = self.total(found)
            return whole / count.clamp(min=1)

    @property
    def owners(self) -> Tensor:
        """``image_of_sentence``, never None."""
        assert self.image_of_sentence is not None
        return self.image_of_sentence

    def needed(self, name: str, reader: str) -> Any:
        """The optional field ``name``, or an error that says who reads it."""
        value = getattr(self, name)
        if value is None:
            raise ValueError(f"'{reader}' needs the field '{name}' of the batch")
        return value

    def generator(self, reader: str, stream: int = 0) -> torch.Generator:
        """Random numbers that depend on ``seed`` and ``stream`` alone.

        Generated on the CPU, so that they are the same on every machine and rank.
        """
        seed = int(self.needed("seed", reader))
        return torch.Generator().manual_seed((seed * 1_000_003 + stream) % 2**62)

    def anchors(self, direction: Direction) -> list[Anchors]:
        """The anchors of ``direction``: one set, or two for ``symmetric``."""
        makers = {
            "text_to_image": [text_anchors],
            "image_to_text": [image_anchors],
            "symmetric": [text_anchors, image_anchors],
        }[direction]
        return [make(self) for make in makers]


FIELDS: dict[str, BatchField] = {
    "similarity": BatchField("image", columns="T"),
    "scale": BatchField("whole"),
} | {
    each.name: each.metadata["declared"]
    for each in fields(ContrastiveBatch)
    if "declared" in each.metadata
}
"""Every field of the batch by its name; the optional ones from their declaration."""


@dataclass(frozen=True)
class TwoViewBatch(ContrastiveBatch):
    """Two views of each of n images, for studies without text (SimCLR).

    ``similarity`` is ``[2n, 2n]``: views 0..n-1 are the first of each image, n..2n-1 the second.
    Every other field has one entry a view. ``direction`` means nothing here: each view is an
    anchor, its other view the positive, the 2n-2 views of other images the negatives.
    """

    def __post_init__(self) -> None:
        views, columns = self.similarity.shape
        if views != columns or views % 2:
            raise ValueError(
                f"similarity has shape {(views, columns)}, expected (2n, 2n) for n images"
            )
        super().__post_init__()

    @classmethod
    def from_views(
        cls, first: Tensor, second: Tensor, scale: Tensor | float, **fields: Any
    ) -> TwoViewBatch:
        """Batch from the embeddings of two views of each image.

        Args:
            first: ``[n, D]``; brought to unit length, in float32 or better.
            second: ``[n, D]``, of the same images in the same order.
            scale: ``1 / tau``.
            **fields: other attributes with one entry an image, as ``eta`` ``[n]``, ``labels``
                ``[n, L]`` or ``text_similarity`` ``[n, n]``; they are repeated for both views.

        Example:
            >>> batch = TwoViewBatch.from_views(torch.eye(2), torch.eye(2), 2.0)
            >>> batch.anchors("symmetric")[0].negatives.sum(dim=1)
            tensor([2, 2, 2, 2])
        """
        views = torch.cat([first, second])
        twice = {
            name: FIELDS[name].repeated(value) if name in FIELDS else value
            for name, value in fields.items()
        }
        return cls(_cosine(views, views), _scalar(scale, views), **twice)

    def anchors(self, direction: Direction) -> list[Anchors]:  # noqa: ARG002
        """Every view against all views but itself: one set."""
        return [view_anchors(self)]


def _cosine(rows: Tensor, columns: Tensor) -> Tensor:
    with torch.autocast(rows.device.type, enabled=False):
        rows, columns = (x if x.dtype == torch.float64 else x.float() for x in (rows, columns))
        return F.normalize(rows, dim=-1) @ F.normalize(columns, dim=-1).T


def _scalar(value: Tensor | float, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.tensor(value, dtype=dtype, device=like.device)
