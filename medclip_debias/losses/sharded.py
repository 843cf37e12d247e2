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
from torch import Tensor, nn

from medclip_debias.losses.batch import Anchors, ContrastiveBatch, Direction, rows_of
from medclip_debias.losses.distributed import Ranks, gather_fields, gather_rows, row_counts
from medclip_debias.losses.objective import LossOutput


def whole_batch_reason(objective: nn.Module) -> str | None:
    """Why ``objective`` needs the whole batch in every process; None if it does not.

    Its policies and its evidence count.
    """
    for module in objective.modules():
        if getattr(module, "rowwise", True) is False:
            name = getattr(module, "kind", type(module).__name__)
            return f"'{name}' looks at more than an anchor's own row"
    return None


class _Transposed(torch.autograd.Function):
    """Blocks of rows of all processes to blocks of columns; backward the other way round."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, images: list[int], texts: list[int], ranks: Ranks
    ) -> Tensor:
        ctx.cut = images, texts, ranks
        mine = texts[ranks.rank]
        parts = _exchange(list(rows.split(texts, dim=1)), [(n, mine) for n in images], ranks)
        return torch.cat(parts)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        images, texts, ranks = ctx.cut
        mine = images[ranks.rank]
        parts = _exchange(list(gradient.split(images)), [(mine, n) for n in texts], ranks)
        return torch.cat(parts, dim=1), None, None, None


def _exchange(parts: list[Tensor], shapes: list[tuple[int, int]], ranks: Ranks) -> list[Tensor]:
    """Send part r to process r; receive one of shape ``shapes[r]`` from each process r."""
    sent = torch.cat([part.reshape(-1) for part in parts])
    sizes = [rows * columns for rows, columns in shapes]
    received = sent.new_empty(sum(sizes))
    lengths = [part.numel() for part in parts]
    dist.all_to_all_single(received, sent, sizes, lengths, group=ranks.group)
    return [x.view(shape) for x, shape in zip(received.split(sizes), shapes, strict=True)]


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


class ShardedBatch(ContrastiveBatch):
    """A process's anchors against all candidates.

    ``similarity`` has the rows of this process's images, ``[I of this process, T]``, and all other
    fields are of the whole batch, as are the numbers in `Anchors.rows` and ``columns``.
    """

    def __init__(self, similarity: Tensor, scale: Tensor, *fields: Any, share: Share, **more: Any):
        self.share = share
        super().__init__(similarity, scale, *fields, **more)

    @property
    def counts(self) -> tuple[int, int]:
        """I and T of all processes."""
        return sum(self.share.images), sum(self.share.texts)

    @cached_property
    def columns(self) -> Tensor:
        """``[I, T of this process]`` scores of all images and this process's sentences."""
        share = self.share
        columns: Tensor = _Transposed.apply(self.similarity, share.images, share.texts, share.ranks)
        return columns

    def anchors(self, direction: Direction) -> list[Anchors]:
        """This process's anchors of ``direction``: one set, or two for ``symmetric``."""
        share, sets = self.share, []
        texts = torch.arange(share.texts[share.ranks.rank], device=self.owners.device)
        texts = texts + share.first_text
        if direction != "image_to_text":
            sets.append(rows_of((self.columns * self.scale).T, texts, self, "text"))
        if direction != "text_to_image":
            place = self.owners[texts] - share.first_image
            sets.append(rows_of((self.similarity * self.scale)[place], texts, self, "image"))
        return sets

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes, without gradient."""
        result = value.detach().clone()
        if self.share.ranks.world > 1:
            dist.all_reduce(result, group=self.share.ranks.group)
        return result

    def loss_of(self, output: LossOutput) -> Tensor:
        """The loss of the whole batch, with the gradient of this process's anchors in it."""
        each, world = output.per_anchor, self.share.ranks.world
        count = self.total(each.new_tensor(len(each)))
        # The mean over the processes of these is the mean over all anchors.
        mine = each.sum() * (world / count)
        return self.total(mine) / world + (mine - mine.detach())


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
    images, texts = row_counts(regions, ranks), row_counts(sentences, ranks)
    share = Share(ranks, images, texts)
    similarity = score(regions, gather_rows(sentences, ranks, texts))
    owners = gather_rows(image_of_sentence + share.first_image, ranks, texts)
    known = gather_fields(fields, ranks, images, texts, text_vectors)
    return ShardedBatch(similarity, scale, owners, **known, share=share)
