"""Each process its share of the loss, instead of the loss of the whole batch in every process.

`medclip_debias.losses.distributed.gather_batch` gives every process the whole matrix of I images
and T sentences. Here a process keeps the rows of its own images and, where sentences are anchors,
the columns of its own sentences, which the processes send each other: of W processes each holds
``2 I T / W`` similarities, and the loss of its own anchors::

    batch = shard_batch(regions, sentences, similarity, scale, ranks, ...)
    batch.loss_of(objective(batch)).backward()

The mean of the processes' gradients is again that of one process with the whole batch. What is
known of images and sentences (labels, claims, text vectors) is gathered as before.

An objective can be computed so if no anchor's loss depends on the other anchors' rows:
`whole_batch_reason` says why one cannot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from medclip_debias.losses.anchors import Anchors, Direction, image_rows, text_rows, view_rows
from medclip_debias.losses.batch import FIELDS, ContrastiveBatch
from medclip_debias.losses.distributed import (
    Ranks,
    check_known,
    gather_fields,
    gather_rows,
    row_counts,
)
from medclip_debias.losses.objective import LossOutput


def whole_batch_reason(objective: nn.Module) -> str | None:
    """Why ``objective`` needs the whole batch in every process; None if it does not.

    Its policies and its evidence count.
    """
    for module in objective.modules():
        reason = getattr(module, "whole_batch", None)
        if isinstance(reason, str):
            return f"'{getattr(module, 'kind', type(module).__name__)}' {reason}"
    return None


class _Transposed(torch.autograd.Function):
    """Blocks of rows of all processes to blocks of columns; backward the other way round."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, images: list[int], texts: list[int], ranks: Ranks
    ) -> Tensor:
        ctx.given = images, texts, ranks
        mine = texts[ranks.rank]
        parts = _exchange(list(rows.split(texts, dim=1)), [(n, mine) for n in images], ranks)
        return torch.cat(parts)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        images, texts, ranks = ctx.given
        mine = images[ranks.rank]
        parts = _exchange(list(gradient.split(images)), [(mine, n) for n in texts], ranks)
        return torch.cat(parts, dim=1), None, None, None


def _exchange(parts: list[Tensor], shapes: list[tuple[int, int]], ranks: Ranks) -> list[Tensor]:
    """Send part r to process r; receive one of shape ``shapes[r]`` from each process r."""
    given = torch.cat([part.reshape(-1) for part in parts])
    sizes = [rows * columns for rows, columns in shapes]
    found = given.new_empty(sum(sizes))
    lengths = [part.numel() for part in parts]
    dist.all_to_all_single(found, given, sizes, lengths, group=ranks.group)
    return [x.view(shape) for x, shape in zip(found.split(sizes), shapes, strict=True)]


@dataclass(frozen=True)
class Share:
    """Which rows of the whole batch a process has.

    Attributes:
        ranks: which process this is.
        images: number of images of each process.
        texts: number of sentences of each process.
    """

    ranks: Ranks
    images: list[int]
    texts: list[int]

    @property
    def first_image(self) -> int:
        """Index of this process's first image in the whole batch."""
        return sum(self.images[: self.ranks.rank])

    @property
    def first_text(self) -> int:
        """Index of this process's first sentence."""
        return sum(self.texts[: self.ranks.rank])


@dataclass(frozen=True)
class ShardedBatch(ContrastiveBatch):
    """A process's anchors against all candidates.

    ``similarity`` has the rows of this process's images, ``[I of this process, T]``, and all other
    fields are of the whole batch, as are the numbers in `Anchors.rows` and ``columns``.
    """

    share: Share | None = None

    @property
    def counts(self) -> tuple[int, int]:
        """I and T of all processes."""
        return sum(self._share.images), sum(self._share.texts)

    @property
    def _share(self) -> Share:
        assert self.share is not None
        return self.share

    @cached_property
    def columns(self) -> Tensor:
        """``[I, T of this process]`` scores of all images and this process's sentences."""
        share = self._share
        args = (self.similarity, share.images, share.texts, share.ranks)
        result: Tensor = _Transposed.apply(*args)
        return result

    @property
    def own(self) -> Tensor:
        """Indices of this process's sentences."""
        share = self._share
        count, device = share.texts[share.ranks.rank], self.similarity.device
        return torch.arange(count, device=device) + share.first_text

    def anchors(self, direction: Direction) -> list[Anchors]:
        """This process's anchors of ``direction``: one set, or two for ``symmetric``."""
        found = []
        if direction != "image_to_text":
            found.append(text_rows((self.columns * self.scale).T, self.own, self))
        if direction != "text_to_image":
            place = self.owners[self.own] - self._share.first_image
            found.append(image_rows((self.similarity * self.scale)[place], self.own, self))
        return found

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes, without gradient."""
        return _total(value, self._share.ranks)

    def loss_of(self, output: LossOutput) -> Tensor:
        """The loss of the whole batch, with the gradient of this process's anchors in it."""
        return _loss_of(self, output, self._share.ranks)


@dataclass(frozen=True)
class ShardedViews(ShardedBatch):
    """The same of two views of each image: ``similarity`` ``[2 n of this process, 2 n]``."""

    @property
    def counts(self) -> tuple[int, int]:
        """2n and 2n."""
        return 2 * sum(self._share.images), 2 * sum(self._share.images)

    def anchors(self, direction: Direction) -> list[Anchors]:  # noqa: ARG002
        """This process's views against all views but themselves: one set."""
        share = self._share
        device = self.similarity.device
        rows = torch.arange(share.images[share.ranks.rank], device=device) + share.first_image
        rows = torch.cat([rows, rows + sum(share.images)])
        return [view_rows(self.similarity * self.scale, rows, self.scale)]


def _total(value: Tensor, ranks: Ranks) -> Tensor:
    result = value.detach().clone()
    if ranks.world > 1:
        dist.all_reduce(result, group=ranks.group)
    return result


def _loss_of(batch: ShardedBatch, output: LossOutput, ranks: Ranks) -> Tensor:
    each = output.per_anchor
    count = batch.total(each.new_tensor(len(each)))
    # The mean over the processes of these is the mean over all anchors.
    mine = each.sum() * (ranks.world / count)
    return batch.total(mine) / ranks.world + (mine - mine.detach())


def shard_batch(
    regions: Tensor,
    sentences: Tensor,
    score: Callable[[Tensor, Tensor], Tensor],
    scale: Tensor,
    ranks: Ranks,
    *,
    image_of_sentence: Tensor,
    text_vectors: Tensor | None = None,
    **fields: Any,
) -> ShardedBatch:
    """This process's share of the batch; arguments as of `distributed.gather_batch`."""
    check_known("shard_batch", fields)
    images, texts = row_counts(regions, ranks), row_counts(sentences, ranks)
    share = Share(ranks, images, texts)
    similarity = score(regions, gather_rows(sentences, ranks, texts))
    owners = gather_rows(image_of_sentence + share.first_image, ranks, texts)
    whole = gather_fields(fields, ranks, images, texts)
    if text_vectors is not None:
        vectors = gather_rows(text_vectors, ranks, texts)
        whole["text_similarity"] = (vectors @ vectors.T).clamp(-1, 1)
    return ShardedBatch(similarity, scale, owners, **whole, share=share)


def shard_views(
    first: Tensor, second: Tensor, scale: Tensor, ranks: Ranks, **fields: Any
) -> ShardedViews:
    """This process's share of a two-view batch; arguments as of `distributed.gather_views`."""
    check_known("shard_views", fields)
    counts = row_counts(first, ranks)
    whole = gather_fields(fields, ranks, counts, counts)
    twice = {name: FIELDS[name].repeated(value) for name, value in whole.items()}
    with torch.autocast(first.device.type, enabled=False):
        views = [
            F.normalize(x if x.dtype == torch.float64 else x.float(), dim=-1)
            for x in (first, second)
        ]
        everyone = torch.cat([gather_rows(view, ranks, counts) for view in views])
        similarity = torch.cat(views) @ everyone.T
    owners = torch.arange(len(everyone), device=first.device)
    share = Share(ranks, counts, counts)
    return ShardedViews(similarity, scale, owners, **twice, share=share)
