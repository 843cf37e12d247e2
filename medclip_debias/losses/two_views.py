"""Two views of each image, for studies without text (SimCLR): the batch, and its anchors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, Direction
from medclip_debias.losses.batch import FIELDS, ContrastiveBatch, check_names, cosine, rows_of


class TwoViewBatch(ContrastiveBatch):
    """Two views of each of n images, for studies without text (SimCLR).

    ``similarity`` is ``[2n, 2n]``: views 0..n-1 are the first of each image, n..2n-1 the second.
    Every other field has one entry a view. ``direction`` means nothing here: each view is an
    anchor, its other view the positive, the 2n-2 views of other images the negatives.
    """

    def __init__(self, similarity: Tensor, scale: Tensor | float, **fields: Any) -> None:
        views, columns = similarity.shape
        if views != columns or views % 2:
            raise ValueError(
                f"similarity has shape {(views, columns)}, expected (2n, 2n) for n images"
            )
        super().__init__(similarity, scale, **fields)

    @classmethod
    def from_views(
        cls, first: Tensor, second: Tensor, scale: Tensor | float, **fields: Any
    ) -> TwoViewBatch:
        """Batch from the embeddings of two views of each image.

        Args:
            first: ``[n, D]``; brought to unit length, in float32 or better.
            second: ``[n, D]``, of the same images in the same order.
            scale: ``1 / tau``.
            **fields: of the batch with one entry an image, as ``eta`` ``[n]`` or
                ``text_similarity`` ``[n, n]``; they are repeated for both views.

        Example:
            >>> batch = TwoViewBatch.from_views(torch.eye(2), torch.eye(2), 2.0)
            >>> batch.anchors("symmetric")[0].negatives.sum(dim=1)
            tensor([2, 2, 2, 2])
        """
        views = torch.cat([first, second])
        return cls(cosine(views, views), scale, **repeated(fields))

    def anchors(self, direction: Direction) -> list[Anchors]:  # noqa: ARG002
        """Every view against all views but itself: one set."""
        rows = torch.arange(len(self.similarity), device=self.similarity.device)
        return [rows_of(self.similarity * self.scale, rows, self, "view")]


def repeated(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of n images for the 2n views of them."""
    check_names("a batch of two views", fields)
    twice = dict(fields)
    for name, value in fields.items():
        if value is not None and FIELDS[name].axis != "batch":
            both = (2, 2) if FIELDS[name].axis == "pair" else (2,) + (1,) * (value.ndim - 1)
            twice[name] = value.repeat(both)
    return twice
