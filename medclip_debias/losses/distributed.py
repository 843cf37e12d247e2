"""Negatives from every process: gather what each process holds into one batch.

Each process scores its images' regions against the sentences of all processes; the rows of scores
are gathered, so that the objective sees the whole ``[I, T]`` matrix everywhere::

    ranks = Ranks.current()
    batch = gather_batch(regions, sentences, model.similarity, model.similarity.scale, ranks,
                         image_of_sentence=owners, sample_ids=ids)
    batch.loss_of(objective(batch).per_anchor).backward()

Averaging the gradients of all parameters over the processes, as ``DistributedDataParallel`` does,
gives that of one process with the whole batch: what is gathered hands each process the sum of all
processes' gradients. State of an objective sees the same numbers everywhere, so its copies stay
equal bit for bit.

With ``shard=True`` each process computes its share of the loss instead of the whole: it keeps the
rows of its own images and, where sentences are anchors, the columns of its own sentences: of W
processes each holds ``2 I T / W`` similarities. No anchor's loss may depend on other anchors' rows
(`whole_batch_reason`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from medclip_debias.losses.anchors import Anchors, Direction
from medclip_debias.losses.batch import FIELDS, ContrastiveBatch, check_names, rows_of
from medclip_debias.losses.two_views import TwoViewBatch


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is, counted within ``group``; alone, nothing is gathered."""

    rank: int = 0
    world: int = 1
    group: Any = None

    @classmethod
    def current(cls) -> Ranks:
        """All processes of torch.distributed, or a single one where it was not started."""
        if not (dist.is_available() and dist.is_initialized()):
            return cls()
        return cls(dist.get_rank(), dist.get_world_size())


class _Gather(torch.autograd.Function):
    """Rows of all processes, in order; backward sums the gradients of all processes."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int], ranks: Ranks) -> Tensor:
        ctx.counts, ctx.ranks = counts, ranks
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(parts, padded, group=ranks.group)
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # A copy: the gradient may be shared with other nodes of the graph.
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=ctx.ranks.group)
        start = sum(ctx.counts[: ctx.ranks.rank])
        return total[start : start + ctx.counts[ctx.ranks.rank]], None, None


def row_counts(rows: Tensor, ranks: Ranks) -> list[int]:
    """Number of rows that each process holds."""
    if ranks.world == 1:
        return [len(rows)]
    mine = torch.tensor([len(rows)], device=rows.device)
    counts = [torch.empty_like(mine) for _ in range(ranks.world)]
    dist.all_gather(counts, mine, group=ranks.group)
    return [int(count) for count in torch.cat(counts).tolist()]


def gather_rows(rows: Tensor, ranks: Ranks, counts: list[int] | None = None) -> Tensor:
    """Rows ``[n, ...]`` of all processes, by rank; differentiable, n may differ among them."""
    if ranks.world == 1:
        return rows
    return _Gather.apply(rows, counts or row_counts(rows, ranks), ranks)


def gather_batch(
    regions: Tensor,
    sentences: Tensor,
    score: Callable[[Tensor, Tensor], Tensor],
    scale: Tensor,
    ranks: Ranks,
    *,
    image_of_sentence: Tensor | None = None,
    text_vectors: Tensor | None = None,
    shard: bool = False,
    **fields: Any,
) -> ContrastiveBatch:
    """The batch of all processes, from what each holds; only vectors, scores and fields travel.

    Args:
        regions: of this process's images, as ``score`` takes them: ``[I, N, D]``, or ``[I, D]``.
        sentences: vectors of this process's sentences ``[T, D]``.
        score: similarities of images and sentences on the cosine scale.
        scale: ``g2``, the same in every process.
        ranks: which process this is.
        image_of_sentence: ``[T]`` index among this process's images.
        text_vectors: ``[T, E]`` unit vectors, whose cosines become the batch's ``text_similarity``.
        shard: give this process's share of the batch, a `ShardedBatch`.
        **fields: of the batch, the same ones in every process, for its images and sentences; with
            the axis ``pair`` its rows of the whole matrix, with ``batch`` equal everywhere.
    """
    images, texts = row_counts(regions, ranks), row_counts(sentences, ranks)
    known = gather_fields(fields, ranks, images, texts, text_vectors)
    rows = score(regions, gather_rows(sentences, ranks, texts))
    if image_of_sentence is None:
        if len(regions) != len(sentences):
            raise ValueError("say in image_of_sentence which image each sentence belongs to")
        image_of_sentence = torch.arange(len(sentences), device=sentences.device)
    owners = gather_rows(image_of_sentence + sum(images[: ranks.rank]), ranks, texts)
    known["image_of_sentence"] = owners
    if shard:
        return ShardedBatch(rows, scale, ranks=ranks, images=images, texts=texts, **known)
    return ContrastiveBatch(gather_rows(rows, ranks, images), scale, **known)


def gather_fields(
    fields: dict[str, Any],
    ranks: Ranks,
    images: list[int],
    texts: list[int],
    text_vectors: Tensor | None = None,
) -> dict[str, Any]:
    """Each field of all processes, by its axis."""
    check_names("a gathered batch", fields)
    known = dict(fields)
    for name, value in fields.items():
        if value is not None and FIELDS[name].axis != "batch":
            counts = images if FIELDS[name].axis == "image" else texts
            known[name] = gather_rows(value, ranks, counts)
    if text_vectors is not None:
        vectors = gather_rows(text_vectors, ranks, texts)
        known["text_similarity"] = (vectors @ vectors.T).clamp(-1, 1)
    return known


def gather_views(
    first: Tensor, second: Tensor, scale: Tensor | float, ranks: Ranks, **fields: Any
) -> TwoViewBatch:
    """`gather_batch` of two views ``[n, D]`` of each image, whose fields have one row an image."""
    counts = row_counts(first, ranks)
    known = gather_fields(fields, ranks, counts, counts)
    first, second = (gather_rows(view, ranks, counts) for view in (first, second))
    return TwoViewBatch.from_views(first, second, scale, **known)


# --------------------------------------------------------------------- each process its share


def whole_batch_reason(objective: nn.Module) -> str | None:
    """Why ``objective`` or a part of it needs the whole batch in every process, or None."""
    for module in objective.modules():
        if getattr(module, "rowwise", True) is False:
            name = getattr(module, "kind", type(module).__name__)
            return f"'{name}' looks at more than an anchor's own row"
    return None


class _Exchange(torch.autograd.Function):
    """A flat tensor in parts, part r to process r, for theirs; backward the other way round."""

    @staticmethod
    def forward(
        ctx: Any, sent: Tensor, sizes: list[int], received: list[int], group: Any
    ) -> Tensor:
        ctx.cut = sizes, received, group
        result = sent.new_empty(sum(received))
        dist.all_to_all_single(result, sent, received, sizes, group=group)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        sizes, received, group = ctx.cut
        result = gradient.new_empty(sum(sizes))
        dist.all_to_all_single(result, gradient.contiguous(), sizes, received, group=group)
        return result, None, None, None


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
        mine = self.texts[self.ranks.rank]
        parts = [part.reshape(-1) for part in self.similarity.split(self.texts, dim=1)]
        sizes, received = [len(part) for part in parts], [count * mine for count in self.images]
        flat: Tensor = _Exchange.apply(torch.cat(parts), sizes, received, self.ranks.group)
        return flat.view(-1, mine)

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

    def loss_of(self, per_anchor: Tensor) -> Tensor:
        """The loss of the whole batch, with the gradient of this process's anchors in it."""
        count = self.total(per_anchor.new_full((), len(per_anchor)))
        # The mean over the processes of these is the mean over all anchors.
        mine = per_anchor.sum() * (self.ranks.world / count)
        return self.total(mine) / self.ranks.world + (mine - mine.detach())
