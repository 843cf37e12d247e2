"""Each process its share of the loss, instead of the loss of the whole batch in every process.

A process keeps the rows of its own images and, where sentences are anchors, the columns of its own
sentences: of W processes each holds ``2 I T / W`` similarities, and the loss of its own anchors::

    batch = shard_batch(regions, sentences, similarity, scale, ranks, ...)
    batch.loss_of(objective(batch)).backward()

The mean of the processes' gradients is that of one process with the whole batch. What is known of
images and sentences is gathered as of `medclip_debias.losses.distributed.gather_batch`. No anchor's
loss may depend on other anchors' rows (`whole_batch_reason`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from medclip_debias.losses.batch import Anchors, ContrastiveBatch, Direction, rows_of
from medclip_debias.losses.distributed import Ranks, gather_fields, gather_rows, row_counts
from medclip_debias.losses.objective import LossOutput


def whole_batch_reason(objective: nn.Module) -> str | None:
    """Why ``objective`` or a part of it needs the whole batch in every process, or None."""
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


class ShardedBatch(ContrastiveBatch):
    """A process's anchors against all candidates.

    ``similarity`` has the rows of this process's images, ``[I of this process, T]``; the fields and
    the numbers in `Anchors` are of the whole batch, ``images`` and ``texts`` the counts of each
    process.
    """

    def __init__(
        self,
        similarity: Tensor,
        scale: Tensor,
        *,
        ranks: Ranks,
        images: list[int],
        texts: list[int],
        **fields: Any,
    ) -> None:
        self.ranks, self.images, self.texts = ranks, images, texts
        super().__init__(similarity, scale, **fields)

    @property
    def counts(self) -> tuple[int, int]:
        """I and T of all processes."""
        return sum(self.images), sum(self.texts)

    @cached_property
    def columns(self) -> Tensor:
        """``[I, T of this process]`` scores of all images and this process's sentences."""
        columns: Tensor = _Transposed.apply(self.similarity, self.images, self.texts, self.ranks)
        return columns

    def anchors(self, direction: Direction) -> list[Anchors]:
        """This process's anchors of ``direction``: one set, or two for ``symmetric``."""
        rank, sets = self.ranks.rank, []
        texts = torch.arange(self.texts[rank], device=self.owners.device)
        texts = texts + sum(self.texts[:rank])
        if direction != "image_to_text":
            sets.append(rows_of((self.columns * self.scale).T, texts, self, "text"))
        if direction != "text_to_image":
            place = self.owners[texts] - sum(self.images[:rank])
            sets.append(rows_of((self.similarity * self.scale)[place], texts, self, "image"))
        return sets

    def total(self, value: Tensor) -> Tensor:
        """The sum over all processes, without gradient."""
        result = value.detach().clone()
        if self.ranks.world > 1:
            dist.all_reduce(result, group=self.ranks.group)
        return result

    def loss_of(self, output: LossOutput) -> Tensor:
        """The loss of the whole batch, with the gradient of this process's anchors in it."""
        each, world = output.per_anchor, self.ranks.world
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
    similarity = score(regions, gather_rows(sentences, ranks, texts))
    owners = gather_rows(image_of_sentence + sum(images[: ranks.rank]), ranks, texts)
    known = gather_fields(fields, ranks, images, texts, text_vectors)
    known["image_of_sentence"] = owners
    return ShardedBatch(similarity, scale, ranks=ranks, images=images, texts=texts, **known)
