"""The original pixels of a radiograph, as a browser can window them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.images.radiograph import Radiograph

_MOST = 65535


@dataclass(frozen=True, eq=False)
class ShownPixels:
    """Every pixel as a level: ``low + step * level`` is its value in display polarity."""

    levels: NDArray[np.unsignedinteger]
    low: float
    step: float
    high: float
    inverted: bool
    window: tuple[float, float]

    @classmethod
    def of(cls, image: Radiograph, clip: tuple[float, float], seen: Radiograph) -> ShownPixels:
        """Of a radiograph."""
        low, high = image.range
        # A level is a function of the value alone, so it is found for each value that occurs.
        values = image.values
        if image.padding is not None:  # as dark as the darkest pixel of the picture
            values = np.where(image.padding, high if image.inverted else low, values)
        if image.inverted:
            values = low + high - values
        occur = values[image.counts > 0]
        whole = high - low <= _MOST and bool(np.all(occur == np.rint(occur)))
        step = 1.0 if whole else (high - low) / _MOST
        last = round((high - low) / step)
        numbers = np.nan_to_num(np.clip(np.rint((values - low) / step), 0, last))
        kind = np.uint8 if last <= 255 else np.uint16
        levels = numbers.astype(kind)[image.codes]
        return cls(levels, low, step, high, image.inverted, _window(image, clip, seen))

    def described(self) -> dict[str, object]:
        """Everything but the pixels."""
        height, width = self.levels.shape
        return {
            "height": height,
            "width": width,
            "depth": 8 * self.levels.dtype.itemsize,
            **{name: getattr(self, name) for name in ("low", "high", "step", "inverted")},
            "window": list(self.window),
        }

    def bytes(self) -> bytes:
        """The levels row by row; of 16 bits, the low byte first."""
        return self.levels.astype(self.levels.dtype.newbyteorder("<"), copy=False).tobytes()


def _window(image: Radiograph, clip: tuple[float, float], seen: Radiograph) -> tuple[float, float]:
    """Stored values, in display polarity, that reach the ends of what the model sees."""
    low, high = seen.percentiles(clip)
    same = image is not seen and np.array_equal(image.codes, seen.codes)
    if same:
        inside = (seen.values > low) & (seen.values < high) & (image.counts > 0)
        stored = image.values[inside]
        same = bool(stored.size) and float(np.ptp(stored)) > 0
    low, high = (float(stored.min()), float(stored.max())) if same else image.percentiles(clip)
    if image.inverted:
        total = sum(image.range)
        low, high = total - high, total - low
    return low, high
