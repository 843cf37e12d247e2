"""Where the regions of an encoder lie in its input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class RegionGrid:
    """Region (row r, column c) is centred at ``(first + stride c, first + stride r)``.

    In continuous pixels of the network's input, x to the right and y down. Padded strided
    convolutions centre their first region on the first pixel, so ``first`` is 0.5 for a ResNet,
    not ``stride / 2`` as for patches; mixing them moves a ResNet-18's heatmap by 15.5 pixels.
    """

    rows: int
    columns: int
    stride: float
    first: float

    @classmethod
    def patches(cls, rows: int, columns: int, side: float) -> RegionGrid:
        """Square patches that cover an input whose longer side is ``side``."""
        stride = side / max(rows, columns)
        return cls(rows, columns, stride, stride / 2)

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.columns

    def centres(self) -> NDArray[np.float64]:
        """Centres in the network's input: ``[rows, columns, 2]`` of (x, y)."""
        x, y = np.meshgrid(np.arange(self.columns), np.arange(self.rows))
        return self.first + self.stride * np.stack([x, y], axis=-1).astype(np.float64)

    def place(self, position: NDArray[np.floating]) -> NDArray[np.floating]:
        """Coordinate of the input as a fractional index: 0 at the first centre, 1 at the next."""
        return (position - self.first) / self.stride
