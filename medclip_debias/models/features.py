"""What an image tower gives: the vectors of an image's regions, and of the whole image."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Rows: TypeAlias = int | slice | Sequence[int] | Sequence[bool] | NDArray[np.generic] | Tensor


@dataclass(frozen=True, eq=False)
class ImageFeatures:
    """Vectors of B images; of unit length unless the model scores by more than cosines.

    Attributes:
        regions: ``[B, N, D]``, N = rows x columns in row-major order.
        whole: ``[B, D]`` by which the model's authors score a whole image; None where the score is
            computed from the regions.
        attended: whether the score is computed from ``whole`` and the regions together.

    Example:
        >>> regions = F.normalize(torch.randn(5, 9, 4), dim=-1)
        >>> features = ImageFeatures(regions)
        >>> len(features), features.pooled.shape, features.stored.shape
        (5, torch.Size([5, 4]), torch.Size([5, 9, 4]))
        >>> len(features[1:3]), len(features[[0, 2, 4]]), len(features[3])
        (2, 3, 1)
    """

    regions: Tensor
    whole: Tensor | None = None
    attended: bool = False

    def __post_init__(self) -> None:
        if self.regions.ndim != 3:
            raise ValueError(f"expected regions [B, N, D], got {tuple(self.regions.shape)}")
        expected = (self.regions.shape[0], self.regions.shape[2])
        if self.whole is not None and tuple(self.whole.shape) != expected:
            raise ValueError(f"expected whole {expected}, got {tuple(self.whole.shape)}")

    def __len__(self) -> int:
        return len(self.regions)

    def __getitem__(self, rows: Rows) -> Self:
        """Some of the images: a slice, a list, an array or tensor of rows, or a mask.

        One row is a batch of one image. Slices share memory with the whole.
        """
        if isinstance(rows, (int, np.integer)):
            rows = [int(rows)]
        if isinstance(rows, np.ndarray):
            rows = torch.from_numpy(rows)
        whole = None if self.whole is None else self.whole[rows]
        return replace(self, regions=self.regions[rows], whole=whole)

    def __iter__(self) -> Iterator[ImageFeatures]:
        """The images one by one, each a batch of one."""
        return (self[row : row + 1] for row in range(len(self)))

    def to(self, device: str | torch.device) -> Self:
        whole = None if self.whole is None else self.whole.to(device)
        return replace(self, regions=self.regions.to(device), whole=whole)

    def cpu(self) -> ImageFeatures:
        return self.to("cpu")

    @classmethod
    def cat(cls, parts: Sequence[ImageFeatures]) -> ImageFeatures:
        """The images of all ``parts``, in order."""
        wholes = [part.whole for part in parts if part.whole is not None]
        if not parts or len(wholes) not in (0, len(parts)):
            raise ValueError("expected one part or more, and all with 'whole' or all without")
        regions = torch.cat([part.regions for part in parts])
        return cls(regions, torch.cat(wholes) if wholes else None, parts[0].attended)

    @property
    def pooled(self) -> Tensor:
        """One unit vector an image ``[B, D]``: ``whole``, or the direction of the mean region."""
        if self.whole is None:
            return F.normalize(self.regions.mean(dim=1), dim=-1)
        length = torch.linalg.vector_norm(self.whole, dim=-1, keepdim=True)
        # One of unit length stays as it is to the last bit.
        return torch.where(
            (length - 1).abs() < 1e-4, self.whole, self.whole / length.clamp_min(1e-12)
        )

    @property
    def stored(self) -> Tensor:
        """What a search index keeps ``[B, K, D]``: all that the model's score is computed from.

        K is 1 (``whole``), the number of regions, or one more where ``whole`` is attended to first.
        """
        if self.attended and self.whole is not None:
            return torch.cat([self.whole[:, None], self.regions], dim=1)
        return self.regions if self.whole is None else self.whole[:, None]

    @classmethod
    def of_stored(cls, vectors: Tensor) -> ImageFeatures:
        """Features that score as those whose `stored` this was.

        A single vector an image is its only region and, at unit length again, its ``whole``.
        """
        if vectors.ndim == 3 and vectors.shape[1] == 1:
            return cls(vectors, F.normalize(vectors[:, 0], dim=-1))
        return cls(vectors)
