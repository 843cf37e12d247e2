"""A heatmap at its original's pixels, measured exactly without forming the pixels.

`medclip_debias.grounding.heatmaps.upsample_to_original` is bilinear between the regions' centres.
So along one row of pixels, between two centres, the scores rise or fall by equal steps: how many
of them reach a threshold, their sum and their sum of squares have closed forms. A 3000 x 2500 map
is thus measured through some 2500 x 20 row pieces instead of 7.5 million pixels, and the pixels it
speaks of are the same ones, rounded to float32 as the map's own are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.evaluation.metrics import UNION_EPSILON
from medclip_debias.evaluation.options import BoxRule
from medclip_debias.grounding.boxes import pixel_edges
from medclip_debias.grounding.heatmaps import axis_places, axis_weights, smooth
from medclip_debias.models.region_grid import RegionGrid

ROOM = 1e-12
_AT_ONCE = 1 << 15
"""Pieces of a map that are counted at once, whatever the number of thresholds."""
Floats = NDArray[np.float64]
Ints = NDArray[np.intp]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Axis:
    """One axis of the image, cut where the map bends and where a box begins or ends.

    The pieces, from their first pixel to behind their last, cover the pixels that the model saw;
    ``offset`` is the first of those, ``weights`` are of the cells at each ``[seen pixels, cells]``.
    """

    starts: Ints
    ends: Ints
    weights: Floats
    offset: int

    @classmethod
    def cut(
        cls, geometry: SquareGeometry, grid: RegionGrid, axis: str, edges: NDArray[np.integer]
    ) -> Axis:
        """Cut the ``x`` or ``y`` axis; ``edges`` are pixels where boxes begin or end."""
        cells = grid.columns if axis == "x" else grid.rows
        first, bends, weights = _bends(geometry, grid, axis)
        if not len(weights):
            return cls(np.zeros(0, np.intp), np.zeros(0, np.intp), np.zeros((0, cells)), 0)
        last = first + len(weights)
        inner = edges[(edges > first) & (edges < last)]
        starts = np.unique(np.concatenate([[first], bends, inner]))
        ends = np.append(starts[1:], last)
        return cls(starts.astype(np.intp), ends.astype(np.intp), weights, first)

    def at(self, pixels: Ints) -> Floats:
        """Weights of the cells at some pixels."""
        return self.weights[pixels - self.offset]


@lru_cache(maxsize=4)
def _bends(geometry: SquareGeometry, grid: RegionGrid, axis: str) -> tuple[int, Ints, Floats]:
    """The first seen pixel of an axis, where the map bends, and the cells' weights at each pixel.

    The same for every map and all boxes of an image, which are looked at one after the other.
    """
    cells = grid.columns if axis == "x" else grid.rows
    place, visible = axis_places(geometry, axis, grid)
    seen = np.flatnonzero(visible)
    if not seen.size:
        return 0, np.zeros(0, np.intp), np.zeros((0, cells))
    first, last = int(seen[0]), int(seen[-1]) + 1
    place = place[first:last]
    # Before the first and behind the last centre the map is constant: pieces of their own.
    piece = np.clip(np.floor(place), -1, cells - 1)
    return first, first + np.flatnonzero(np.diff(piece)) + 1, axis_weights(place, cells)


class Upsampled:
    """The metrics of one heatmap against the union of boxes.

    Args:
        grid_map: region-sentence cosines ``[rows, columns]``.
        geometry: the image's way into the model.
        grid: where the regions lie in the model's input.
        boxes: ``[K, 4]`` of x, y, width, height in original pixels.
        smoothing: sigma of a Gaussian over the grid, in cells; 0 for none.
    """

    def __init__(
        self,
        grid_map: NDArray[np.floating],
        geometry: SquareGeometry,
        grid: RegionGrid,
        boxes: ArrayLike,
        *,
        smoothing: float = 0.0,
    ) -> None:
        values = np.asarray(grid_map, dtype=np.float64)
        if values.shape != grid.shape:
            raise ValueError(f"expected a map of {grid.shape}, got one of {values.shape}")
        self._grid = smooth(values, smoothing) if smoothing else values
        edges = pixel_edges(boxes, geometry.height, geometry.width)
        self.height, self.width = geometry.height, geometry.width
        self.area = _union_area(edges)
        self._y = Axis.cut(geometry, grid, "y", edges[:, 1::2].ravel())
        self._x = Axis.cut(geometry, grid, "x", edges[:, ::2].ravel())
        y, x = self._y.starts[:, None], self._x.starts[None, :]
        self._inside = np.zeros((y.size, x.size), dtype=bool)
        for left, top, right, bottom in edges:
            self._inside |= (y >= top) & (y < bottom) & (x >= left) & (x < right)
        sizes = (self._y.ends - self._y.starts)[:, None] * (self._x.ends - self._x.starts)
        self.pixels_inside = int(sizes[self._inside].sum())
        self.pixels_outside = int(sizes[~self._inside].sum())

    # ------------------------------------------------------------------------- metrics

    def cnr(self) -> float:
        """Signed contrast-to-noise ratio; 0 where it is undefined."""
        if not self.pixels_inside or not self.pixels_outside:
            return 0.0
        (mean_in, var_in), (mean_out, var_out) = (
            self._moments(mask) for mask in (self._inside, ~self._inside)
        )
        if var_in + var_out == 0:
            return 0.0
        return (mean_in - mean_out) / math.sqrt(var_in + var_out)

    def iou(self, thresholds: Sequence[float] | NDArray[np.floating]) -> Floats:
        """IoU of ``score >= t`` and the boxes for each threshold (union + 1e-6)."""
        inside, outside = self.count_at_least(thresholds)
        return np.asarray(inside / (self.area + outside + UNION_EPSILON))

    def dice(self, shares: Sequence[float] | NDArray[np.floating]) -> Floats:
        """Dice coefficient of the boxes and the map cut at each share of its range."""
        low, high = self.extremes
        if math.isnan(low):
            return np.zeros(len(shares))
        inside, outside = self.count_at_least(low + np.asarray(shares) * (high - low))
        return np.asarray(2 * inside / (self.area + inside + outside))

    def pointing_game(self) -> float:
        """Share of the highest pixels that lie in a box."""
        if not self.pixels_inside or not self.pixels_outside:
            return float(self.pixels_inside > 0)
        inside, outside = self.count_at_least([self.extremes[1]])
        return float(inside[0] / (inside[0] + outside[0]))

    def first_highest(self) -> tuple[int, int] | None:
        """Row and column of the highest pixel, the first of several in reading order.

        None where nothing was seen. A bilinear block is highest at one of its corners.
        """
        if not self._y.starts.size or not self._x.starts.size:
            return None
        rows, columns = (np.union1d(axis.starts, axis.ends - 1) for axis in (self._y, self._x))
        scores = (self._y.at(rows) @ self._grid @ self._x.at(columns).T).astype(np.float32)
        row, column = divmod(int(scores.argmax()), len(columns))
        return int(rows[row]), int(columns[column])

    def count_at_least(
        self, thresholds: Sequence[float] | NDArray[np.floating], *, above: bool = False
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """How many seen pixels inside and outside the boxes reach each threshold, or exceed it."""
        bounds = float32_bound(np.asarray(thresholds), above=above)
        low, high = self.extremes
        everything = bounds <= low
        inside = np.where(everything, self.pixels_inside, 0)
        outside = np.where(everything, self.pixels_outside, 0)
        some = np.flatnonzero(~everything & (bounds <= high))
        # Maps of few pieces at many thresholds at once, large ones at one after the other.
        at_once = max(1, _AT_ONCE // max(1, self._pieces[0].size))
        for places in (some[i : i + at_once] for i in range(0, len(some), at_once)):
            reaching = self._reaching(bounds[places, None, None])
            counts = np.add.reduceat(reaching, self._row_starts, axis=1)
            inside[places] = counts[:, self._inside].sum(axis=1)
            outside[places] = counts.sum(axis=(1, 2)) - inside[places]
        return inside, outside

    @cached_property
    def extremes(self) -> tuple[float, float]:
        """Lowest and highest seen score, as float32 holds them; NaN where nothing was seen."""
        low, high = self._corners
        return (float(low.min()), float(high.max())) if low.size else (math.nan, math.nan)

    # ------------------------------------------------------------------------ boxes out

    def regions_at_least(
        self, threshold: float, connectivity: int = 8
    ) -> tuple[list[list[float]], list[float]]:
        """Boxes ``[x, y, w, h]`` around the connected regions of ``score >= threshold``; peaks."""
        row, begin, end, highest = self._runs(threshold)
        if not row.size:
            return [], []
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        # Runs are in reading order, so those of the next row that touch one are neighbours in it.
        reach = 1 if connectivity == 8 else 0
        stride = self.width + 2
        first = np.searchsorted(row * stride + end, (row + 1) * stride + begin - reach, "right")
        behind = np.searchsorted(row * stride + begin, (row + 1) * stride + end + reach, "left")
        touching = np.maximum(behind - first, 0)
        one = np.repeat(np.arange(row.size), touching)
        within = np.arange(one.size) - np.repeat(np.cumsum(touching) - touching, touching)
        other = np.repeat(first, touching) + within
        links = coo_array((np.ones(one.size, dtype=np.int8), (one, other)), shape=(row.size,) * 2)
        count, group = connected_components(links, directed=False)
        left, top = np.full(count, self.width), np.full(count, self.height)
        right, bottom = np.zeros(count, dtype=np.intp), np.zeros(count, dtype=np.intp)
        peaks = np.full(count, -np.inf)
        np.minimum.at(left, group, begin)
        np.minimum.at(top, group, row)
        np.maximum.at(right, group, end)
        np.maximum.at(bottom, group, row + 1)
        np.maximum.at(peaks, group, highest)
        boxes = np.stack([left, top, right - left, bottom - top], axis=1)
        return [[float(side) for side in box] for box in boxes], peaks.tolist()

    # ------------------------------------------------------------------------- the pieces

    @cached_property
    def _row_starts(self) -> Ints:
        return self._y.starts - self._y.offset

    @cached_property
    def _pieces(self) -> tuple[Floats, Floats, Ints]:
        """First and last score of each row's pieces ``[rows, pieces]``, and their lengths."""
        rows = self._y.weights @ self._grid
        ends = [rows @ self._x.at(pixels).T for pixels in (self._x.starts, self._x.ends - 1)]
        return ends[0], ends[1], self._x.ends - self._x.starts

    @cached_property
    def _slopes(self) -> tuple[Floats, Floats, Floats]:
        """Highest score of each piece, pixels that a unit of score takes, and that reach it.

        A flat piece, or one of a pixel, has no slope: all of it reaches its score.
        """
        first, last, lengths = self._pieces
        with np.errstate(divide="ignore", invalid="ignore"):
            per_unit = (lengths - 1) / np.abs(last - first)
        sloped = np.isfinite(per_unit)
        return np.maximum(first, last), np.where(sloped, per_unit, 0), np.where(sloped, 1, lengths)

    @cached_property
    def _corners(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Lowest and highest score of each block: a bilinear one has them at its corners."""
        corners = np.stack(
            [
                self._y.at(rows) @ self._grid @ self._x.at(columns).T
                for rows in (self._y.starts, self._y.ends - 1)
                for columns in (self._x.starts, self._x.ends - 1)
            ]
        ).astype(np.float32)
        return corners.min(axis=0), corners.max(axis=0)

    def _reaching(self, bound: Floats | float) -> Floats:
        """How many pixels of each piece reach a `float32_bound`, ``[..., rows, pieces]``."""
        highest, per_unit, at_highest = self._slopes
        above = highest - bound
        counts = np.floor(above * per_unit) + at_highest
        counts[~(above >= 0)] = 0
        return np.minimum(counts, self._pieces[2])

    def _runs(self, threshold: float) -> tuple[Ints, Ints, Ints, Floats]:
        """Row, first pixel, end and highest score of every unbroken run that reaches a threshold.

        A run's highest score is at an end of one of its pieces, and the pixels of a piece that
        reach a threshold begin at its higher end.
        """
        none = np.zeros(0, dtype=np.intp)
        if not self._y.starts.size or not self._x.starts.size:
            return none, none, none, np.zeros(0)
        counts = self._reaching(float32_bound(threshold)).astype(np.intp)
        first, last, _ = self._pieces
        begin = np.where(last >= first, self._x.ends - counts, self._x.starts)
        row, piece = np.nonzero(counts)
        start = begin[row, piece]
        end = start + counts[row, piece]
        if not row.size:
            return none, none, none, np.zeros(0)
        fresh = np.r_[True, (row[1:] != row[:-1]) | (start[1:] != end[:-1])]
        opening = np.flatnonzero(fresh)
        closing = np.r_[opening[1:] - 1, row.size - 1]
        highest = np.maximum.reduceat(np.maximum(first, last)[row, piece], opening)
        return row[fresh] + self._y.offset, start[fresh], end[closing], highest

    def _moments(self, blocks: Mask) -> tuple[float, float]:
        """Mean and population variance of the scores in some blocks."""
        low, high = self._corners
        if low[blocks].min() == high[blocks].max():
            return float(low[blocks][0]), 0.0  # exactly: rounding would pass for variance
        first, last, lengths = self._pieces
        middle = (first + last) / 2
        sizes = (self._y.ends - self._y.starts)[:, None] * lengths
        count = sizes[blocks].sum()
        # Twice, the second time about the mean: squares of a far-off mean would swamp the rest.
        sums = np.add.reduceat(lengths * middle, self._row_starts, axis=0)
        mean = float(sums[blocks].sum() / count)
        step = (last - first) / np.maximum(lengths - 1, 1)
        squares = lengths * (middle - mean) ** 2 + step**2 * lengths * (lengths**2 - 1) / 12
        total = np.add.reduceat(squares, self._row_starts, axis=0)[blocks].sum()
        return mean, float(total / count)


# ------------------------------------------------------------------------------- helpers


def box_threshold(heatmap: Upsampled, rule: BoxRule) -> float:
    """The score at which ``rule`` cuts a map."""
    if rule.rule == "score":
        return rule.value
    low, high = heatmap.extremes
    return low + rule.value * (high - low)


def float32_bound(thresholds: Floats | float, *, above: bool = False) -> Floats:
    """The float64 from which a score, rounded to float32, reaches a threshold, or exceeds it.

    Midway between the first float32 that does so and the one below. No score that is meant to
    equal a threshold lies near such a midpoint, so the last bits of a sum cannot decide. About 0,
    where float32 is finer than those bits, 1e-12 of room does the same: a score of 0 reaches 0 and
    does not exceed it.
    """
    wanted = np.clip(np.asarray(thresholds, dtype=np.float64), -1e38, 1e38)  # no infinity
    first = wanted.astype(np.float32)
    short = (first <= wanted) if above else (first < wanted)
    first = np.where(short, np.nextafter(first, np.float32(np.inf)), first)
    below = np.nextafter(first, np.float32(-np.inf)).astype(np.float64)
    return np.where(first - below < ROOM, wanted + (ROOM if above else -ROOM), (first + below) / 2)


def _union_area(edges: NDArray[np.intp]) -> int:
    """Pixels of the union of boxes given as left, top, right, bottom."""
    xs, ys = np.unique(edges[:, ::2]), np.unique(edges[:, 1::2])
    if len(xs) < 2 or len(ys) < 2:
        return 0
    covered = np.zeros((len(ys) - 1, len(xs) - 1), dtype=bool)
    for left, top, right, bottom in edges:
        covered |= ((ys[:-1] >= top) & (ys[:-1] < bottom))[:, None] & (
            (xs[:-1] >= left) & (xs[:-1] < right)
        )
    return int((covered * np.diff(ys)[:, None] * np.diff(xs)).sum())
