"""Sentences as a user hands them to a model: one text or several, never letters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from medclip_debias.errors import UserError


def sentence_list(texts: str | Iterable[str]) -> list[str]:
    """The sentences of ``texts``; a string is one sentence, not a list of letters."""
    if isinstance(texts, str):
        return [texts]
    if isinstance(texts, bytes | Mapping) or not isinstance(texts, Iterable):
        raise UserError(
            f"sentences are a text or a list of texts, not {_kind(texts)}; give"
            " ['Left pleural effusion.']."
        )
    sentences = list(texts)
    for number, text in enumerate(sentences, start=1):
        if not isinstance(text, str):
            raise UserError(f"sentence {number} is {_kind(text)}, not a text; write it as text.")
    return sentences


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """One tensor of several models' ``[T, D]``, or of ``[T, K, D]`` with zeros up to the most K."""
    if parts[0].ndim == 2:
        return torch.cat(list(parts))
    most = max(part.shape[1] for part in parts)
    return torch.cat([F.pad(part, (0, 0, 0, most - part.shape[1])) for part in parts])


def one_vector(
    sentences: Tensor,
    rows: tuple[int | None, int | None] | None = None,
    beside: Literal["images", "regions"] = "images",
) -> Tensor:
    """Unit vectors ``[T, D]`` of what a model encoded, ``[T, D]`` or ``[T, K, D]``.

    ``rows`` are the model's ``sentence_rows``, ``beside`` says which of the two; without rows, the
    direction of the mean word.
    """
    if sentences.ndim == 2:
        return sentences
    if rows is None:
        total = sentences.sum(dim=1)
    else:
        total = sentences[:, rows[0 if beside == "images" else 1] or 0]
    return total / total.norm(dim=-1, keepdim=True).clamp_min(1e-12)


def encode_distinct(
    ids: Sequence[Sequence[int]], encode: Callable[[list[list[int]]], Tensor], group: int
) -> Tensor:
    """Vectors ``[T, D]`` or ``[T, K, D]`` of tokenised sentences of any length.

    Equal ones are encoded once, and those of like length together, so that little is padding.
    """
    distinct = sorted({tuple(row) for row in ids}, key=lambda row: (len(row), row))
    rows = [list(row) for row in distinct]
    vectors = stacked([encode(rows[start : start + group]) for start in range(0, len(rows), group)])
    place = {row: number for number, row in enumerate(distinct)}
    places = torch.tensor([place[tuple(row)] for row in ids])
    return vectors[places.to(vectors.device, non_blocking=True)]


def _kind(value: object) -> str:
    return "nothing (None)" if value is None else f"of type {type(value).__name__}"
