"""One radiograph in memory, without a float copy of its pixels.

Every step from a stored value to a grey level (modality LUT, window, inversion, clipping,
stretching) is a function of the value alone. So the pixels stay the integers of the file, the
steps run on the few values that occur, and one table lookup makes the picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.config import PrepareSettings, WindowPolicy
from medclip_debias.errors import UserError

MIN_SIDE = 16
MAX_ASPECT = 10
MAX_SIDE = 20_000
MAX_PIXELS = 200_000_000
MAX_COLOURED = {8: 50_000_000, 16: 25_000_000}
"""Pixels of a colour image by its bits; decoding one needs 15 and 30 bytes a pixel."""
_MAX_SCANS = 20
_MAX_SCANNED = 1_000_000_000
TOO_LARGE = (
    f"is larger than {MAX_SIDE:,} pixels per side or {MAX_PIXELS // 1_000_000} megapixels;"
    " that is not a radiograph, remove it or make it smaller."
)
_EXACT_IN_FLOAT32 = 1 << 24  # opencv hands its counts out as float32


def check_size(path: Path, height: int, width: int) -> None:
    """Refuse an image of absurd size; called before a pixel of it is decoded.

    Raises:
        UserError: fewer than `MIN_SIDE` or more than `MAX_SIDE` pixels a side, more than
            `MAX_PIXELS` in all, or a side over `MAX_ASPECT` times as long as the other.
    """
    if height < 1 or width < 1:
        raise UserError(f"{path}: the image has no rows or no columns; copy it again.")
    if max(height, width) > MAX_SIDE or height * width > MAX_PIXELS:
        raise UserError(f"{path}: {TOO_LARGE}")
    if min(height, width) < MIN_SIDE:
        raise UserError(
            f"{path}: has {width} x {height} pixels, fewer than {MIN_SIDE} on a side; that is not a"
            " radiograph, leave it out."
        )
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise UserError(
            f"{path}: has {width} x {height} pixels, one side over {MAX_ASPECT} times as long as"
            " the other; that is not a radiograph, leave it out."
        )


def check_scans(path: Path, jpeg: bytes, height: int, width: int) -> None:
    """Refuse a JPEG stream of so many scans that decoding it would take minutes.

    A progressive picture has about ten. Within a scan FF is followed by 00 or a restart, so the
    marker FFDA stands before scans alone (and in a thumbnail, which has few).

    Raises:
        UserError: over `_MAX_SCANS` scans, and over `_MAX_SCANNED` pixels in all of them.
    """
    scans = jpeg.count(b"\xff\xda")
    if scans > _MAX_SCANS and scans * height * width > _MAX_SCANNED:
        raise UserError(
            f"{path}: its JPEG stream has {scans:,} scans, where a progressive picture has about"
            " ten; save it again."
        )


@dataclass(frozen=True, eq=False)
class Radiograph:
    """Pixels as codes, and the value of each code.

    Attributes:
        codes: ``[H, W]`` unsigned integers.
        values: ``[n]`` float64, one for each code; low is dark unless ``inverted``.
        inverted: low values are bright (MONOCHROME1).
        padding: ``[n]``, codes of pixels outside the picture, or none. They count in no percentile
            and are shown as dark as the darkest pixel inside.
        mended: an omission or a contradiction of the file that was passed over, such as ``HighBit
            is missing``; ``""`` for most.
        window: display window that was applied to a DICOM file; None for other files and arrays.
    """

    codes: NDArray[Any]
    values: NDArray[np.float64]
    inverted: bool = False
    padding: NDArray[np.bool_] | None = None
    mended: str = ""
    window: WindowPolicy | None = None

    @classmethod
    def of(cls, array: NDArray[Any], *, inverted: bool = False) -> Radiograph:
        """Wrap a 2-D array of any numeric type; 8 and 16-bit integers are not copied."""
        codes, values = encoded(array)
        return cls(codes, values.astype(np.float64), inverted)

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        height, width = self.codes.shape
        return height, width

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """``[n]``: pixels of each code inside the picture."""
        import cv2

        size = len(self.values)
        if self.codes.dtype.itemsize > 2:
            counted = np.bincount(self.codes.ravel(), minlength=size)
        else:
            counted = np.zeros(size, dtype=np.int64)
            rows = max(1, _EXACT_IN_FLOAT32 // self.codes.shape[1])
            for top in range(0, len(self.codes), rows):
                some = cv2.calcHist([self.codes[top : top + rows]], [0], None, [size], [0, size])
                counted += np.asarray(some).ravel().astype(np.int64)
        return counted if self.padding is None else np.where(self.padding, 0, counted)

    @cached_property
    def range(self) -> tuple[float, float]:
        """Lowest and highest value that occurs (NaN when one is no number)."""
        found = self.values[self.counts > 0]
        return float(found.min()), float(found.max())

    def display(self) -> NDArray[np.float32]:
        """Values in display polarity, high = bright: float32 ``[H, W]``."""
        values = sum(self.range) - self._shown if self.inverted else self._shown
        return self._looked_up(values.astype(np.float32))

    def percentiles(self, clip: tuple[float, float]) -> tuple[float, float]:
        """`numpy.percentile` of all values, from their counts (``clip`` in display polarity)."""
        low, high = (100 - clip[1], 100 - clip[0]) if self.inverted else clip
        codes = np.flatnonzero(self.counts)
        codes = codes[np.argsort(self.values[codes], kind="stable")]
        below = np.cumsum(self.counts[codes])
        values = self.values[codes]
        return _ranked(values, below, low), _ranked(values, below, high)

    def stretched(self, settings: PrepareSettings) -> NDArray[np.uint8]:
        """Clip at the percentiles ``settings.clip``, stretch to 0..255, equalise if asked.

        With ``levels: as_stored`` an 8-bit image keeps its levels.

        With ``equalize`` grey levels are cut, not rounded, and inverted after that, as in the
        conversion behind MIMIC-CXR-JPG; ``clip: [0, 100]`` and ``window: none`` then give
        its very grey levels.

        Raises:
            UserError: the image holds a single grey value between the clipping percentiles.
        """
        import cv2

        eight_bits = len(self.values) == 256 and (np.sort(self.values) == np.arange(256)).all()
        if settings.levels == "as_stored" and eight_bits:
            stored = self._shown.astype(np.uint8)
            return self._looked_up(255 - stored if self.inverted else stored)
        low, high = self.percentiles(settings.clip)
        if not low < high:
            raise UserError(
                "the image holds a single grey value between its clipping percentiles;"
                " nothing can be seen on it."
            )
        levels = (np.clip(self._shown, low, high) - low) / (high - low) * 255.0
        # Codes that never occur may stand for no number; what they become is not seen.
        levels = np.nan_to_num(np.floor(levels) if settings.equalize else np.rint(levels))
        table = levels.astype(np.uint8)
        grey = self._looked_up(255 - table if self.inverted else table)
        return np.asarray(cv2.equalizeHist(grey)) if settings.equalize else grey

    @property
    def _shown(self) -> NDArray[np.float64]:
        """The values, the darkest of the picture in the place of padding."""
        if self.padding is None:
            return self.values
        return np.where(self.padding, self.range[1 if self.inverted else 0], self.values)

    def _looked_up(self, table: NDArray[Any]) -> NDArray[Any]:
        """``table[codes]``; opencv needs a quarter of the time, where it can."""
        if self.codes.dtype.itemsize > 2:
            return table[self.codes]
        import cv2

        return np.asarray(cv2.LUT(self.codes, table))


def encoded(array: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Split an array into unsigned codes and the value of each code: ``values[codes]``."""
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    kind, width = array.dtype.kind, array.dtype.itemsize
    if kind in "iu" and width <= 2:
        unsigned = np.dtype(f"u{width}")
        every = np.arange(1 << 8 * width).astype(unsigned)
        return array.view(unsigned), every.view(array.dtype)
    if kind == "f" and array.size:
        low, high = float(array.min()), float(array.max())
        if low >= 0 and high < 65536:  # most arrays of floats are whole numbers of a file
            whole = array.astype(np.uint16)
            if np.array_equal(whole, array):
                return encoded(whole)
    values, codes = np.unique(array, return_inverse=True)
    return codes.reshape(array.shape).astype(np.uint32), values


def _ranked(values: NDArray[np.float64], below: NDArray[np.int64], percent: float) -> float:
    """Percentile with linear interpolation; ``below[i]`` pixels are at most ``values[i]``."""
    last = int(below[-1]) - 1
    rank = percent / 100 * last
    left = int(rank)
    first, second = np.searchsorted(below, [left, min(left + 1, last)], side="right")
    return float(values[first] + (rank - left) * (values[second] - values[first]))
