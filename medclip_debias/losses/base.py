"""What every objective takes and returns, and the register that finds them.

An objective is one file: a settings class with its ``kind``, and an `Objective` subclass.
Importing the file is all the registration there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn

from medclip_debias.config import Settings

Direction = Literal["text_to_image", "image_to_text", "symmetric"]

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.uint8)


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
        seed: what random choices of this step derive from (`generator`).
    """

    similarity: Tensor
    scale: Tensor
    image_of_sentence: Tensor | None = None
    study_of_image: Tensor | None = None
    log_prob: Tensor | None = None
    eta: Tensor | None = None
    text_ids: Tensor | None = None
    sample_ids: Tensor | None = None
    labels: Tensor | None = None
    text_similarity: Tensor | None = None
    keywords: Tensor | None = None
    label_names: tuple[str, ...] | None = None
    graph: Tensor | None = None
    agreement: Tensor | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("similarity", "scale"):
            value = getattr(self, name)
            if value.dtype in (torch.bfloat16, torch.float16):
                object.__setattr__(self, name, value.float())
        images, sentences = self.similarity.shape
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
        self._check_shapes(images, sentences)
        self._check_values()

    def _check_shapes(self, images: int, sentences: int) -> None:
        expected: dict[str, tuple[int, ...]] = dict.fromkeys(
            ("image_of_sentence", "log_prob", "eta", "text_ids", "keywords"), (sentences,)
        )
        expected |= dict.fromkeys(("sample_ids", "study_of_image"), (images,)) | {"scale": ()}
        expected |= dict.fromkeys(("text_similarity", "graph"), (sentences, sentences))
        for name, shape in expected.items():
            value = getattr(self, name)
            if value is not None and value.shape != shape:
                raise ValueError(f"{name} has shape {tuple(value.shape)}, expected {shape}")
        if self.labels is not None:
            columns = "L" if self.label_names is None else len(self.label_names)
            wrong = self.labels.ndim != 2 or self.labels.shape[0] != images
            if wrong or columns not in ("L", self.labels.shape[1]):
                raise ValueError(
                    f"labels has shape {tuple(self.labels.shape)}, expected ({images}, {columns})"
                )
        if self.agreement is not None and (
            self.agreement.dtype != torch.bool or self.agreement.shape[:1] != (images,)
        ):
            raise ValueError("agreement must hold one row of true or false an image")
        for name in ("image_of_sentence", "study_of_image", "text_ids", "sample_ids", "keywords"):
            value = getattr(self, name)
            if value is not None and value.dtype not in _INTEGERS:
                raise ValueError(f"{name} must hold integers, it holds {value.dtype}")
        self._check_range("image_of_sentence", images, "images")
        if self.agreement is not None:
            self._check_range("text_ids", self.agreement.shape[1], "columns of agreement")

    def _check_range(self, name: str, count: int, what: str) -> None:
        value = getattr(self, name)
        if value is None:
            return
        low, high = (int(end) for end in torch.aminmax(value))
        if low < 0 or high >= count:
            wrong = low if low < 0 else high
            raise ValueError(f"{name} holds {wrong}, but the batch has {count} {what}, from 0 on")

    def _check_values(self) -> None:
        for name in ("similarity", "scale", "log_prob", "eta", "text_similarity", "graph"):
            value = getattr(self, name)
            if value is not None and not torch.isfinite(value).all():
                raise FloatingPointError(f"'{name}' holds a NaN or an infinity")
        if self.labels is not None and torch.isinf(self.labels).any():
            raise FloatingPointError("'labels' holds an infinity")

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

        Drawn on the CPU, so that they are the same on every machine and rank.
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
        twice = {name: _for_both_views(name, value) for name, value in fields.items()}
        return cls(_cosine(views, views), _scalar(scale, views), **twice)

    def anchors(self, direction: Direction) -> list[Anchors]:  # noqa: ARG002
        """Every view against all views but itself: one set."""
        logits = self.similarity * self.scale
        views = torch.arange(len(logits), device=logits.device)
        other = views.roll(len(logits) // 2)
        negatives = (views[None, :] != views[:, None]) & (views[None, :] != other[:, None])
        positive = logits.gather(1, other[:, None]).squeeze(1)
        return [Anchors(logits, positive, negatives, self.scale, other, views, views, "view")]


def _cosine(rows: Tensor, columns: Tensor) -> Tensor:
    with torch.autocast(rows.device.type, enabled=False):
        rows, columns = (x if x.dtype == torch.float64 else x.float() for x in (rows, columns))
        return F.normalize(rows, dim=-1) @ F.normalize(columns, dim=-1).T


def _for_both_views(name: str, value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    square = name in ("text_similarity", "graph")
    return value.repeat((2, 2) if square else (2,) + (1,) * (value.ndim - 1))


def _scalar(value: Tensor | float, like: Tensor) -> Tensor:
    if isinstance(value, Tensor):
        return value
    dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
    return torch.tensor(value, dtype=dtype, device=like.device)


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

    def images(self, batch: ContrastiveBatch) -> tuple[Tensor, Tensor]:
        """Image (or view) index of each anchor ``[A]`` and of each candidate ``[C]``."""
        if self.side == "view":
            return self.rows, self.columns
        candidates = self.columns if self.side == "text" else batch.owners[self.columns]
        return batch.owners[self.rows], candidates

    def between_texts(self, matrix: Tensor, batch: ContrastiveBatch) -> Tensor:
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


def text_anchors(batch: ContrastiveBatch) -> Anchors:
    """Each sentence against the batch's images; its own image is the positive."""
    logits = (batch.similarity * batch.scale).T
    candidates = torch.arange(logits.shape[1], device=logits.device)
    sentences = torch.arange(logits.shape[0], device=logits.device)
    negatives = candidates[None, :] != batch.owners[:, None]
    positive = logits.gather(1, batch.owners[:, None]).squeeze(1)
    own = batch.owners
    return Anchors(logits, positive, negatives, batch.scale, own, sentences, candidates, "text")


def image_anchors(batch: ContrastiveBatch) -> Anchors:
    """Each sentence's image against the batch's sentences.

    One anchor for each pair of an image and a sentence of it; the image's other sentences are
    neither positive nor negative.
    """
    logits = (batch.similarity * batch.scale)[batch.owners]
    negatives = batch.owners[None, :] != batch.owners[:, None]
    pairs = torch.arange(len(logits), device=logits.device)
    positive = logits.diagonal()
    return Anchors(logits, positive, negatives, batch.scale, pairs, pairs, pairs, "image")


def same_study(anchors: Anchors, batch: ContrastiveBatch, reader: str = "same_study") -> Tensor:
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


class KnowsRun:
    """Base of the modules that `Objective.begin` tells about the run."""

    def begin(self, *, samples: int, steps_per_epoch: int) -> None:
        """Take note of the size of the run: see `Objective.begin`."""
        raise NotImplementedError


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters of an objective and what to multiply the run's learning rate by for them."""

    parameters: list[nn.Parameter]
    lr_factor: float = 1.0


class LossSettings(Settings):
    """Base of every objective's settings; each subclass names its ``kind``."""

    kind: str = ""


class MaskedLMSettings(Settings):
    """A masked-language-model loss of the text encoder, added with ``weight``.

    ``mask_share`` of the tokens is to be predicted (BERT's 15%).
    """

    weight: float = Field(1.0, ge=0)
    mask_share: float = Field(0.15, gt=0, lt=1)


class Objective(nn.Module):
    """Base of every objective.

    Called under autocast it switches it off: everything in here is float32 or better.

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
        if "kind" in cls.__dict__:  # a base shared by several objectives has no kind of its own
            cls.register[cls.kind] = cls

    def __call__(self, batch: ContrastiveBatch) -> LossOutput:
        """Per-anchor losses of one batch."""
        with torch.autocast(batch.similarity.device.type, enabled=False):
            result: LossOutput = super().__call__(batch)
        return result

    @property
    def requires(self) -> frozenset[str]:
        """Optional fields of the batch that this objective, so set, reads."""
        return frozenset()

    @property
    def masked_lm(self) -> MaskedLMSettings | None:
        """The masked-language-model term that the training loop is to add, if any."""
        return None

    def begin(self, *, samples: int, steps_per_epoch: int) -> None:
        """Tell policies and tables of this objective how large the run is.

        Call it once, before the first batch; a checkpoint may be loaded before or after. Without
        it tables grow as samples are seen, and only what counts in epochs cannot be used.

        Args:
            samples: studies of the training set; ``sample_ids`` are below it.
            steps_per_epoch: batches in one pass over them.
        """
        for module in self.modules():
            if isinstance(module, KnowsRun):
                module.begin(samples=samples, steps_per_epoch=steps_per_epoch)

    def parameter_groups(self) -> list[ParameterGroup]:
        """Every learned parameter of this objective, once, by learning rate; none is decayed."""
        own = list(self.parameters())
        return [ParameterGroup(own)] if own else []

    def forward(self, batch: ContrastiveBatch) -> LossOutput:
        """Per-anchor losses of one batch."""
        raise NotImplementedError
