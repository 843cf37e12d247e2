"""What the renderer computes with: functions that give the same bits on every processor.

IEEE 754 fixes addition, subtraction, multiplication, division, the square root and roundings to the
last bit. It does not fix exp, log, sin or pow, nor in which order a filter or a matrix product adds
up, nor whether a compiler fuses a product and a sum: those differ between vector units, between
C libraries, and between x86-64 and arm64, and what differs in the last bit now and then becomes
another grey value. So everything here is made of the fixed operations alone, each one a numpy call
of its own (which nothing can fuse), in an order that is written down. Against numpy and OpenCV the
functions differ by a few 1e-16 (tests/phantom/test_exact.py).
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Grain = NDArray[np.float32]

# ln 2 and pi, each as a float of few bits, whose small multiples are exact, and the rest.
_LN2 = (0.6931471803691238, 1.9082149292705877e-10)
_PI = (3.1415926534682512, 1.2154201013012384e-10)

_EXPONENTIAL = [1 / math.factorial(n) for n in range(15)]
_LOGARITHM = [2 / (2 * n + 1) for n in range(13)]
_SINE = [(-1) ** n / math.factorial(2 * n + 1) for n in range(13)]


def _series(x: Floats, terms: list[float]) -> Floats:
    """Sum of ``terms[n] x**n``, from the highest power down."""
    total = np.full_like(x, terms[-1])
    for term in terms[-2::-1]:
        total *= x
        total += term
    return total


def exp(x: ArrayLike) -> Floats:
    """``e**x`` for ``x`` up to 700; below -700 it is 0."""
    x = np.asarray(x, dtype=np.float64)
    held = np.clip(x, -700.0, 700.0)
    halvings = np.rint(held / math.log(2))
    rest = (held - halvings * _LN2[0]) - halvings * _LN2[1]
    power_of_e = np.ldexp(_series(rest, _EXPONENTIAL), halvings.astype(np.int32))
    return np.where(x < -700.0, 0.0, power_of_e)


def log(x: ArrayLike) -> Floats:
    """Natural logarithm of positive normal numbers."""
    mantissa, exponent = np.frexp(np.asarray(x, dtype=np.float64))
    small = mantissa < math.sqrt(0.5)
    mantissa, exponent = np.where(small, 2 * mantissa, mantissa), exponent - small
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = _series(s * s, _LOGARITHM)
    return exponent * _LN2[0] + (s * series + exponent * _LN2[1])


def power(x: ArrayLike, exponent: float) -> Floats:
    """``x**exponent`` for ``x`` of 0 and above and a positive exponent."""
    x = np.asarray(x, dtype=np.float64)
    powers = exp(exponent * log(np.where(x > 0, x, 1.0)))
    return np.where(x > 0, powers, 0.0)


def sin(x: ArrayLike) -> Floats:
    """Sine, for angles of up to a few thousand."""
    x = np.asarray(x, dtype=np.float64)
    turns = np.rint(x / math.pi)
    rest = (x - turns * _PI[0]) - turns * _PI[1]
    odd = _series(rest * rest, _SINE)
    odd *= rest
    half = turns * 0.5
    odd *= 1.0 - 4.0 * (half - np.floor(half))  # the sign of odd numbers of half turns
    return odd


def cos(x: ArrayLike) -> Floats:
    """Cosine, for angles of up to a few thousand."""
    return sin(np.asarray(x, dtype=np.float64) + math.pi / 2)


def blur(image: Floats, sigma: float) -> Floats:
    """Gaussian blur over five pixels each way; the border is reflected, its pixel not repeated."""
    weights = [float(exp(-(n * n) / (2 * sigma * sigma))) for n in range(3)]
    total = weights[0] + 2 * (weights[1] + weights[2])
    middle, near, far = (weight / total for weight in weights)
    for _ in range(2):  # along the rows, then along the columns
        padded = np.pad(image, ((0, 0), (2, 2)), mode="reflect")
        image = (
            middle * padded[:, 2:-2]
            + near * (padded[:, 1:-3] + padded[:, 3:-1])
            + far * (padded[:, :-4] + padded[:, 4:])
        ).T
    return image


def enlarge(coarse: Floats, shape: tuple[int, int]) -> Floats:
    """Cubic interpolation to another size, the border repeated: OpenCV's INTER_CUBIC."""
    for side in shape[::-1]:  # along the rows, then along the columns
        wide = np.zeros((len(coarse), side))
        for place, weight in zip(*_cubic(coarse.shape[1], side), strict=True):
            wide += coarse[:, place] * weight
        coarse = wide.T
    return coarse


def _cubic(given: int, wanted: int) -> tuple[list[NDArray[np.int64]], list[Floats]]:
    """Four places and weights of each wanted pixel; OpenCV computes them in float32, so this too.

    Source: Keys, Cubic convolution interpolation (1981), with a = -0.75.
    """
    at = ((np.arange(wanted) + 0.5) * (given / wanted) - 0.5).astype(np.float32)
    left = np.floor(at)
    x, one, a = at - left, np.float32(1), np.float32(-0.75)
    y, z = x + one, one - x
    far = ((a * y - 5 * a) * y + 8 * a) * y - 4 * a
    near = ((a + 2) * x - (a + 3)) * x * x + one
    after = ((a + 2) * z - (a + 3)) * z * z + one
    weights = [far, near, after, one - far - near - after]
    first = left.astype(np.int64) - 1
    places = [np.clip(first + step, 0, given - 1) for step in range(4)]
    return places, [weight.astype(np.float64) for weight in weights]


class Generator(np.random.Generator):
    """numpy's generator, whose uniform and float32 normal numbers are the same bits everywhere.

    They are also the bits that numpy itself gives where its C code was compiled without fused
    operations, as for x86-64. Single normal numbers in float64 come from numpy.
    """

    def __init__(self, key: list[int]) -> None:
        super().__init__(np.random.PCG64(key))

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        """Uniform numbers in ``[low, high)``."""
        return low + (high - low) * self.random(size)

    def normal(self, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        """Normal numbers with a mean and a standard deviation."""
        return loc + scale * self.standard_normal(size)

    def grain(self, shape: tuple[int, int]) -> Grain:
        """Standard normal numbers in float32: ``standard_normal(shape, dtype=np.float32)``."""
        parts, wanted = [], shape[0] * shape[1]
        while wanted:
            parts.append(self._numbers(self._words(wanted)))  # each number needs one word or more
            wanted -= len(parts[-1])
        return np.concatenate(parts).reshape(shape)

    def _words(self, count: int) -> NDArray[np.uint32]:
        return self.integers(0, 2**32, size=count, dtype=np.uint32)

    def _numbers(self, words: NDArray[np.uint32]) -> Grain:
        """The numbers that the ziggurat makes of words; the last one may take more words."""
        strip, place = words & 255, words >> 9
        values = place.astype(np.float32) * _WIDTHS[strip]
        values = np.where(words >> 8 & 1, -values, values)
        slow = np.flatnonzero(place >= _BOUNDS[strip])  # outside the core of their strip
        under = _under_the_curve(
            strip[slow], values[slow], words[np.minimum(slow + 1, len(words) - 1)]
        )
        left_out: list[int] = []
        free = 0
        for at, keep in zip(slow.tolist(), under.tolist(), strict=True):
            if at < free:  # that word was used by the number before
                continue
            if strip[at] == 0:
                values[at], free = self._tail(words, at + 1, bool(place[at] >> 8 & 1))
            else:
                free = at + 2
                if free > len(words):
                    keep = _under_the_curve(strip[at:], values[at:], self._words(1))[0]
                left_out += [] if keep else [at]
            left_out += range(at + 1, min(free, len(words)))
        return np.delete(values, left_out)

    def _tail(self, words: NDArray[np.uint32], at: int, negative: bool) -> tuple[np.float32, int]:
        """A number beyond the last strip, and the place behind the words that it took."""
        while True:
            pair = words[at : at + 2]
            pair = np.concatenate([pair, self._words(2 - len(pair))])
            at += 2
            x, y = (-log(1.0 - _units(pair).astype(np.float64))).astype(np.float32)
            x *= np.float32(1 / _R)
            if y + y > x * x:
                return (-x - _R if negative else x + _R).astype(np.float32), at


def _ziggurat() -> tuple[NDArray[np.uint32], NDArray[np.float32], NDArray[np.float32]]:
    """Bounds, widths and heights of 256 strips of equal area under the normal curve.

    Source: Marsaglia and Tsang, The ziggurat method (2000), in the form of Doornik (2005), with
    23 bits for the place in a strip. No entry lies so near to a rounding's edge that another C
    library's exp or log would move it.
    """
    scale, area = 2.0**23, 0.00492867323397465524494
    edges = [_R]
    for _ in range(254):
        x = edges[-1]
        edges.append(math.sqrt(-2 * math.log(area / x + math.exp(-0.5 * x * x))))
    edges = [area / math.exp(-0.5 * _R * _R), *edges[::-1]]  # of strip 0, then 1 to 255
    bounds = [
        edges[255] / edges[0],
        0.0,
        *(a / b for a, b in pairwise(edges[1:])),
    ]
    heights = [1.0, *(math.exp(-0.5 * x * x) for x in edges[1:])]
    return (
        np.array([round(bound * scale) for bound in bounds], np.uint32),
        np.array([edge / scale for edge in edges], np.float32),
        np.array(heights, np.float32),
    )


_R = 3.6541528853610088
_BOUNDS, _WIDTHS, _HEIGHTS = _ziggurat()


def _units(words: NDArray[np.uint32]) -> Grain:
    """Numbers in [0, 1) of 24 bits."""
    return (words >> 8).astype(np.float32) * np.float32(2.0**-24)


def _under_the_curve(
    strip: NDArray[np.integer], values: Grain, words: NDArray[np.uint32]
) -> NDArray[np.bool_]:
    """Whether heights in strips, which words choose, are under the normal curve at the values."""
    low, high = _HEIGHTS[strip], _HEIGHTS[np.maximum(strip, 1) - 1]
    heights = (high - low) * _units(words) + low
    return heights < exp(-0.5 * np.square(values, dtype=np.float64))
