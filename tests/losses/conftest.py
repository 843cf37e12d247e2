"""A batch with every optional field, of images and sentences or of two views, and its pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import pytest
import torch

from medclip_debias.losses import ContrastiveBatch, TwoViewBatch

OWNERS = [0, 0, 1, 2, 3, 3, 4, 5]
"""8 sentences of 6 images; images 2 and 5 are two views of one study."""

NAMES = ("Cardiomegaly", "Edema", "Pleural Effusion", "Pneumonia", "Pneumothorax", "Fracture")


def fields(seed: int, images: int, sentences: int, dtype: torch.dtype) -> dict[str, object]:
    """Random values of the optional fields."""
    g = torch.Generator().manual_seed(seed + 1000)
    vectors = torch.nn.functional.normalize(
        torch.randn(sentences, 4, generator=g, dtype=torch.float64), dim=-1
    )
    labels = torch.tensor([1.0, 0.0, -1.0, float("nan")])[
        torch.randint(0, 4, (images, len(NAMES)), generator=g)
    ]
    return {
        "log_prob": (-torch.rand(sentences, generator=g, dtype=torch.float64) * 20).to(dtype),
        "eta": (torch.rand(sentences, generator=g, dtype=torch.float64) * 0.9).to(dtype),
        "text_ids": torch.randint(0, sentences // 2 + 1, (sentences,), generator=g),
        "sample_ids": torch.tensor([7, 8, 9, 10, 11, 9, 12, 13])[:images],
        "labels": labels,
        "label_names": NAMES,
        "text_similarity": (vectors @ vectors.T).clamp(-1, 1).to(dtype),
        "graph": torch.rand(sentences, sentences, generator=g, dtype=torch.float64).to(dtype),
        "keywords": torch.randint(0, 4, (sentences,), generator=g),
        "agreement": torch.rand(images, sentences, generator=g) < 0.4,
        "stated": torch.randint(-100, 101, (images, 3), generator=g, dtype=torch.int8),
        "claims": torch.randint(-3, 4, (sentences, 2), generator=g),
        "seed": seed,
        "done": 0.4,
    }


def full_batch(
    draw: int = 0,
    scale: float = 3.0,
    dtype: torch.dtype = torch.float64,
    similarity: torch.Tensor | None = None,
    owners: Sequence[int] = OWNERS,
    **changes: object,
) -> ContrastiveBatch:
    """6 images, 8 sentences (or as ``owners`` says), every optional field."""
    g = torch.Generator().manual_seed(draw)
    images = max(owners) + 1
    drawn = torch.rand(images, len(owners), generator=g, dtype=torch.float64) * 2 - 1
    known = fields(draw, images, len(owners), dtype) | changes
    return ContrastiveBatch(
        drawn.to(dtype) if similarity is None else similarity,
        torch.tensor(scale, dtype=dtype),
        torch.tensor(owners),
        **known,  # type: ignore[arg-type]
    )


def view_batch(
    draw: int = 0, scale: float = 3.0, images: int = 5, **changes: object
) -> TwoViewBatch:
    """Two views of each image in float64, with the fields that make sense there."""
    g = torch.Generator().manual_seed(draw)
    first, second = torch.randn(2, images, 6, generator=g, dtype=torch.float64)
    known = fields(draw, images, images, torch.float64) | changes
    return TwoViewBatch.from_views(first, second, scale, **known)


class Row(NamedTuple):
    """One anchor, as plain numbers: what a loop over single pairs reads."""

    sentence: int
    image: int
    own: int  # column of the positive
    logits: list[float]
    images: list[int]  # image of each column
    sentences: list[list[int]]  # sentences of each column

    @property
    def others(self) -> list[int]:
        """Columns of the negatives: those of other images."""
        return [c for c, image in enumerate(self.images) if image != self.image]


def rows_of(batch: ContrastiveBatch, direction: str) -> Iterator[Row]:
    """Every anchor of ``text_to_image`` or ``image_to_text``, in order."""
    owners, scaled = batch.owners.tolist(), batch.scale * batch.similarity
    for j, image in enumerate(owners):
        if direction == "text_to_image":
            images = list(range(len(scaled)))
            sentences = [[n for n, owner in enumerate(owners) if owner == i] for i in images]
            yield Row(j, image, image, scaled[:, j].tolist(), images, sentences)
        else:
            sentences = [[n] for n in range(len(owners))]
            yield Row(j, image, j, scaled[image].tolist(), owners, sentences)


@pytest.fixture(scope="session")
def make_batch():
    """`full_batch`."""
    return full_batch


@pytest.fixture(scope="session")
def make_views():
    """`view_batch`."""
    return view_batch
