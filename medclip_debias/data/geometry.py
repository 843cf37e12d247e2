"""The one transform between an original image and the network's input.

Pad (or cut) to a centred square, scale, crop the centre: ``x' = scale * (x + pad) - crop`` on each
axis; a negative pad is a cut. Both axes have one scale, unless the whole image is squashed to a
square. Coordinates are continuous: pixel ``(row i, column j)`` covers ``[j, j+1] x [i, i+1]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from medclip_debias.config import Fit

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class SquareGeometry:
    """Maps points and boxes of an original image to the network's input, and back.

    Args:
        height: rows of the original image.
        width: columns of the original image.
        size: side of the prepared square.
        input_size: side of the central crop that the network sees; ``size`` for none.
        fit: ``pad`` the shorter side of the original, ``crop`` the longer one, or ``squash`` the
            whole to a square, each side by a scale of its own.

    Example:
        >>> geometry = SquareGeometry(height=100, width=200, size=100, input_size=80)
        >>> geometry.box_to_model([0, 0, 200, 100]).tolist()  # the whole original image
        [-10.0, 15.0, 100.0, 50.0]
    """

    height: int
    width: int
    size: int
    input_size: int
    fit: Fit = "pad"

    def __post_init__(self) -> None:
        if min(self.height, self.width, self.size, self.input_size) < 1:
            raise ValueError(f"every side must be at least one pixel, got {self}")
        if self.input_size > self.size:
            raise ValueError(f"the crop {self.input_size} is larger than the square {self.size}")

    @property
    def sides(self) -> tuple[int, int]:
        """Columns and rows that become the square, in original pixels, padding included."""
        if self.fit == "squash":
            return self.width, self.height
        side = (max if self.fit == "pad" else min)(self.height, self.width)
        return side, side

    @property
    def pad_x(self) -> int:
        """Columns added on the left, in original pixels; negative when they are cut."""
        return (self.sides[0] - self.width) // 2

    @property
    def pad_y(self) -> int:
        """Rows added on top, in original pixels; negative when they are cut."""
        return (self.sides[1] - self.height) // 2

    @property
    def scales(self) -> tuple[float, float]:
        """Prepared pixels per original pixel, along x and along y."""
        across, down = self.sides
        return self.size / across, self.size / down

    @property
    def crop(self) -> int:
        """Columns cut on the left and rows cut on top, in prepared pixels."""
        return (self.size - self.input_size) // 2

    def to_model(self, xy: ArrayLike) -> Floats:
        """Map points ``[..., 2]`` (x, y) of the original image to the network's input."""
        return np.asarray(self.scales) * (_floats(xy, 2) + self._pad) - self.crop

    def to_original(self, xy: ArrayLike) -> Floats:
        """Map points ``[..., 2]`` (x, y) of the network's input to the original image."""
        return (_floats(xy, 2) + self.crop) / np.asarray(self.scales) - self._pad

    def box_to_model(self, box: ArrayLike) -> Floats:
        """Map boxes ``[..., 4]`` (x, y, width, height); boxes may leave the crop."""
        box = _floats(box, 4)
        return np.concatenate(
            [self.to_model(box[..., :2]), box[..., 2:] * np.asarray(self.scales)], axis=-1
        )

    @property
    def _pad(self) -> Floats:
        return np.array([self.pad_x, self.pad_y], dtype=np.float64)


def _floats(values: ArrayLike, width: int) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim < 1 or array.shape[-1] != width:
        raise ValueError(f"expected an array [..., {width}], got shape {array.shape}")
    return array
