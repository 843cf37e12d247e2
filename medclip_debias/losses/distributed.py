"""Negatives from every process: gather what each process holds into one batch.

Each process scores its images' regions against the sentences of all processes; the rows of scores
are gathered, so that the objective sees the whole ``[I, T]`` matrix everywhere::

    ranks = Ranks.current()
    batch = gather_batch(regions, sentences, model.similarity, model.similarity.scale, ranks,
                         image_of_sentence=owners, sample_ids=ids)
    objective(batch).loss.backward()

Averaging the gradients of all parameters over the processes, as ``DistributedDataParallel`` does,
gives that of one process with the whole batch: what is gathered hands each process the sum of all
processes' gradients. State of an objective sees the same numbers everywhere, so its copies stay
equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from medclip_debias.losses.batch import FIELDS, ContrastiveBatch, check_names
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
    return [int(count) for count in counts]


def gather_rows(rows: Tensor, ranks: Ranks, counts: list[int] | None = None) -> Tensor:
    """Rows ``[n, ...]`` of all processes, by rank; differentiable, n may differ among them."""
    if ranks.world == 1:
        return rows
    result: Tensor = _Gather.apply(rows, counts or row_counts(rows, ranks), ranks)
    return result


def gather_batch(
    regions: Tensor,
    sentences: Tensor,
    score: Callable[[Tensor, Tensor], Tensor],
    scale: Tensor,
    ranks: Ranks,
    *,
    image_of_sentence: Tensor | None = None,
    text_vectors: Tensor | None = None,
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
        **fields: of the batch, the same ones in every process, for its images and sentences; with
            the axis ``pair`` its rows of the whole matrix, with ``batch`` equal everywhere.
    """
    images, texts = row_counts(regions, ranks), row_counts(sentences, ranks)
    known = gather_fields(fields, ranks, images, texts, text_vectors)
    everyone = gather_rows(sentences, ranks, texts)
    similarity = gather_rows(score(regions, everyone), ranks, images)
    if image_of_sentence is None:
        if len(regions) != len(sentences):
            raise ValueError("say in image_of_sentence which image each sentence belongs to")
        image_of_sentence = torch.arange(len(sentences), device=sentences.device)
    owners = gather_rows(image_of_sentence + sum(images[: ranks.rank]), ranks, texts)
    return ContrastiveBatch(similarity, scale, owners, **known)


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
