"""Phrase grounding under a preset: a region map, its geometry and boxes to metrics.

`score_map` measures one phrase; `summarise_maps` puts phrases together as the preset says. On the
original's pixels the counts are exact without forming the map
(`medclip_debias.evaluation.upsampled`); on a square of 224 pixels the map is formed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.evaluation.metrics import moments
from medclip_debias.evaluation.presets import GroundingRule
from medclip_debias.evaluation.upsampled import Upsampled
from medclip_debias.grounding.boxes import as_boxes, pixel_edges
from medclip_debias.grounding.heatmaps import axis_places, smooth, upsample_to_original
from medclip_debias.models.region_grid import RegionGrid

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
DICE_THRESHOLDS: Floats = np.arange(0, 1.01, 0.01)
"""RadZero's, of the logistic function of a cosine times the model's scale."""


@dataclass(frozen=True)
class MapScore:
    """What one phrase's map gives; NaN where a rule has none, or leaves it out.

    ``iou`` is at each threshold of the rule, ``cnr`` NaN also where the truth or the rest was not
    seen, ``dice`` at each of `DICE_THRESHOLDS` or of the rule's thresholds.
    """

    iou: Floats
    cnr: float = math.nan
    pointing: float = math.nan
    dice: Floats | None = None


def score_map(
    rule: GroundingRule,
    grid_map: NDArray[np.floating],
    boxes: ArrayLike,
    geometry: SquareGeometry,
    grid: RegionGrid,
    *,
    smoothing: float = 0.0,
    scale: float | None = None,
) -> MapScore:
    """Measure one phrase.

    ``scale`` is what the model's cosines were multiplied by in training; None for no Dice.
    """
    blur = smoothing if rule.smoothing is None else rule.smoothing
    if rule.grid == "equal_cells":
        grid = RegionGrid.patches(*grid.shape, geometry.input_size)
    if rule.frame == "original" and rule.central == 1 and rule.overlap == "inside":
        exact = Upsampled(grid_map, geometry, grid, boxes, smoothing=blur)
        return _score(rule, exact, boxes, scale)
    frame = geometry
    depth = _depth(boxes, geometry.height, geometry.width)
    if rule.frame == "square":
        frame = SquareGeometry(rule.side, rule.side, geometry.size, geometry.input_size)
        depth = _depth(square_boxes(boxes, geometry, rule.side), rule.side, rule.side)
        if rule.square_boxes == "nearest":
            depth = nearest_depth(boxes, geometry, rule.side)
    if rule.between == "nearest":
        cells = smooth(grid_map, blur) if blur else np.asarray(grid_map, dtype=np.float64)
        return score_pixels(rule, nearest_map(cells, frame, grid), depth, scale=scale)
    heatmap = upsample_to_original(grid_map, frame, grid, smoothing=blur, dtype=np.float64)
    places = boxes if rule.frame == "original" else None
    return score_pixels(rule, heatmap, depth, places, scale=scale)


def score_pixels(
    rule: GroundingRule,
    heatmap: NDArray[np.floating],
    depth: NDArray[np.integer],
    boxes: ArrayLike | None = None,
    *,
    scale: float | None = None,
) -> MapScore:
    """The same from a map's pixels.

    The map is NaN where the model did not see; ``depth`` counts the boxes that cover each pixel,
    and ``boxes`` are needed for ``pointing: first``.
    """
    return _score(rule, _Pixels(rule, heatmap, depth), boxes, scale)


class _Pixels:
    """The pixels of a map, with the questions that `Upsampled` answers without them."""

    def __init__(
        self, rule: GroundingRule, heatmap: NDArray[np.floating], depth: NDArray[np.integer]
    ) -> None:
        values = np.array(heatmap, dtype=np.float64)
        seen = ~np.isnan(values)
        if rule.central < 1:
            side = int(rule.central * min(values.shape))
            top, left = ((length - side) // 2 for length in values.shape)
            central = np.zeros_like(seen)
            central[top : top + side, left : left + side] = True
            seen &= central
        self.area = int((depth > 0).sum())
        self._inside = np.sort(values[seen & (depth > 0)])
        self._outside = np.sort(values[seen & (depth == 0)])
        self._contrasted = self._inside if rule.overlap == "inside" else values[seen & (depth == 1)]
        self.pixels_inside, self.pixels_outside = self._inside.size, self._outside.size
        self._values, self._depth = np.where(seen, values, -np.inf), depth
        known = values[seen] if seen.any() else np.full(1, np.nan)
        self.extremes = float(known.min()), float(known.max())

    def count_at_least(self, cuts: Floats, *, above: bool = False) -> tuple[Ints, Ints]:
        side: Literal["left", "right"] = "right" if above else "left"
        inside, outside = (
            np.asarray(part.size - np.searchsorted(part, cuts, side), dtype=np.int64)
            for part in (self._inside, self._outside)
        )
        return inside, outside

    def cnr(self) -> float:
        if not self._contrasted.size:
            return math.nan
        (mean_in, var_in), (mean_out, var_out) = map(moments, (self._contrasted, self._outside))
        spread = math.sqrt(var_in + var_out)
        return (mean_in - mean_out) / spread if spread > 0 else 0.0

    @property
    def highest(self) -> NDArray[np.bool_]:
        """Which of the highest pixels lie in a box."""
        return self._depth[self._values == self.extremes[1]] > 0

    def pointing_game(self) -> float:
        return float(self.highest.mean())

    def first_highest(self) -> tuple[int, int]:
        row, column = divmod(int(self._values.argmax()), self._values.shape[1])
        return row, column


def _score(
    rule: GroundingRule, heat: Upsampled | _Pixels, boxes: ArrayLike | None, scale: float | None
) -> MapScore:
    low, high = heat.extremes
    above, scaled = rule.above == "above", rule.scale == "min_max"
    cuts = np.asarray(rule.thresholds, dtype=np.float64)
    if scaled:
        cuts = low + (cuts + 1) / 2 * (high - low)
    truth = heat.area if rule.unseen_truth == "counts" else heat.pixels_inside
    counts = heat.count_at_least(cuts, above=above)
    cnr = heat.cnr() if heat.pixels_inside and heat.pixels_outside else math.nan
    if rule.unseen_truth == "counts" and math.isnan(cnr):
        cnr = 0.0
    if scaled and not high > low:
        cnr = math.nan
    pointing = math.nan
    if not math.isnan(high):
        if rule.pointing == "ties_shared":
            pointing = heat.pointing_game()
        elif rule.pointing == "any" and isinstance(heat, _Pixels):
            pointing = float(heat.highest.any())
        elif rule.pointing == "first" and boxes is not None and (place := heat.first_highest()):
            row, column = place
            x, y, w, h = as_boxes(boxes).T
            # Its number lies between some box's edges, both included.
            held = (x <= column) & (column <= x + w) & (y <= row) & (row <= y + h)
            pointing = float(held.any())
    dice = None
    if rule.dice == "at_thresholds":
        dice = _dice(*counts, truth)
    elif rule.dice == "best_on_test" and scale is not None:
        with np.errstate(divide="ignore"):
            logits = np.log(DICE_THRESHOLDS) - np.log1p(-np.minimum(DICE_THRESHOLDS, 1.0))
        dice = _dice(*heat.count_at_least(logits / scale, above=above), truth)
    signed = {"absolute": abs(cnr), "signed": cnr, "none": math.nan}[rule.cnr]
    inside, outside = counts
    union = truth + outside + rule.union_epsilon
    with np.errstate(invalid="ignore"):
        iou = np.where(union > 0, inside / union, 0.0)
    if rule.empty == "skip":
        none = (inside + outside == 0) | (truth == 0) | (low == high and scaled)
        iou = np.where(none, np.nan, iou)
    return MapScore(iou, signed, pointing, dice)


def square_boxes(boxes: ArrayLike, geometry: SquareGeometry, side: int) -> NDArray[np.int64]:
    """Boxes on the square of ``side`` pixels, in whole pixels as AFLoc's ``box_transfer`` cuts.

    The longer side becomes ``side``, what the shorter one lacks is padded half before and half
    behind; place and size are cut down each for itself. Where the model's own square is a crop or
    squashed (no published case) the place is cut down likewise.
    """
    array = as_boxes(boxes).astype(np.float64)
    factors = side / np.array(geometry.sides, dtype=np.float64)
    if geometry.fit == "pad":
        lengths = np.array([geometry.width, geometry.height]) * factors
        pad = (side - np.floor(lengths)) // 2
        pad[int(geometry.height >= geometry.width)] = 0  # the longer side is not padded
    else:
        pad = np.array([geometry.pad_x, geometry.pad_y]) * factors
    scaled = array * np.tile(factors, 2)
    scaled[:, :2] += pad
    return np.floor(scaled).astype(np.int64)


def nearest_map(
    grid_map: NDArray[np.floating], geometry: SquareGeometry, grid: RegionGrid
) -> Floats:
    """Every pixel takes the score of the nearest region: ``[height, width]``, NaN where unseen."""
    rows, columns = (
        np.clip(np.floor(axis_places(geometry, axis, grid)[0] + 0.5), 0, cells - 1).astype(np.int64)
        for axis, cells in zip("yx", grid.shape, strict=True)
    )
    seen = np.ix_(*(axis_places(geometry, axis, grid)[1] for axis in "yx"))
    heatmap = np.full((geometry.height, geometry.width), np.nan)
    heatmap[seen] = np.asarray(grid_map, dtype=np.float64)[np.ix_(rows, columns)][seen]
    return heatmap


def nearest_depth(boxes: ArrayLike, geometry: SquareGeometry, side: int) -> NDArray[np.int64]:
    """How many boxes cover each pixel of the square, as MedKLIP's ``RSNA2018_Dataset`` draws them.

    Place and size of a box are cut to whole pixels of the original, and each pixel of the square
    takes the original pixel that torch's ``nearest`` picks, the one at its upper left corner.
    """
    pads = (geometry.pad_x, geometry.pad_y)
    pixels = np.arange(side)
    x, y = (pixels * n // side - pad for n, pad in zip(geometry.sides, pads, strict=True))
    depth = np.zeros((side, side), dtype=np.int64)
    for left, top, width, height in as_boxes(boxes).astype(np.int64):
        depth += np.outer((y >= top) & (y < top + height), (x >= left) & (x < left + width))
    return depth


def merge_phrases(
    rule: GroundingRule,
    images: Sequence[int],
    texts: Sequence[str],
    boxes: Sequence[Sequence[Sequence[float]]],
) -> list[tuple[int, list[list[float]]]]:
    """What is one phrase under a rule, and counts for it: number of its first phrase, all boxes."""
    phrases: dict[Any, tuple[int, list[list[float]]]] = {}
    on_image = Counter[int]()
    for number, (image, text) in enumerate(zip(images, texts, strict=True)):
        key = (image, text.lower()) if rule.merge == "lower_case" else number
        phrases.setdefault(key, (number, []))[1].extend(list(box) for box in boxes[number])
        on_image[image] += len(boxes[number])
    every = rule.images == "all"
    return [one for one in phrases.values() if every or on_image[images[one[0]]] == 1]


def summarise_maps(
    rule: GroundingRule, scores: Sequence[MapScore], categories: Sequence[str]
) -> dict[str, Any]:
    """The preset's metrics over phrases, and of each category.

    IoU is averaged at each threshold first, then over the thresholds, which matters where empty
    maps are skipped. Means leave out what is NaN, and count it: ``skipped`` (pairs of phrase and
    threshold), ``without_cnr``, ``without_dice`` (why there is none).
    """
    if not scores:
        return {"phrases": 0}
    kinds = np.asarray(categories, dtype=object)
    groups = [kinds == kind for kind in dict.fromkeys(categories)]
    over = groups if rule.average == "categories" else [np.ones(len(kinds), dtype=bool)]
    result = _means(rule, scores, over)
    result["phrases"] = len(scores)
    if rule.thresholds:
        result["skipped"] = int(np.isnan(np.stack([s.iou for s in scores])).sum())
    if rule.dice == "best_on_test" and scores[0].dice is None:
        result["without_dice"] = "the model has no learned scale"
    if rule.cnr != "none":
        result["without_cnr"] = int(np.isnan([s.cnr for s in scores]).sum())
    result["categories"] = {
        str(kinds[group][0]): {
            **_means(rule, [s for s, own in zip(scores, group, strict=True) if own], [None]),
            "phrases": int(group.sum()),
        }
        for group in groups
    }
    return result


def _means(
    rule: GroundingRule, scores: Sequence[MapScore], groups: Sequence[Any]
) -> dict[str, Any]:
    def mean(values: ArrayLike) -> float:
        array = np.asarray(values, dtype=np.float64)
        parts = [array if group is None else array[group] for group in groups]
        means = [known.mean() for part in parts if (known := part[~np.isnan(part)]).size]
        return float(np.mean(means)) if means else math.nan

    result: dict[str, Any] = {}
    if rule.thresholds:
        ious = np.stack([score.iou for score in scores])
        at = [mean(column) for column in ious.T]
        result["miou"] = float(np.mean(at))
        result["iou"] = {f"{t:g}": value for t, value in zip(rule.thresholds, at, strict=True)}
    if rule.cnr != "none":
        name = "cnr_signed" if rule.cnr == "signed" else "cnr"
        result[name] = mean([score.cnr for score in scores])
    if rule.pointing != "none":
        result["pointing_game"] = mean([score.pointing for score in scores])
    curves = [score.dice for score in scores if score.dice is not None]
    if rule.dice == "at_thresholds":
        result["dice"] = float(np.mean([mean(column) for column in np.stack(curves).T]))
    if rule.dice == "best_on_test" and curves:  # all or none, as the model has a scale or not
        curve = np.mean(curves, axis=0)
        best = int(np.argmax(curve))
        result["dice_at_best_threshold_on_test"] = float(curve[best])
        result["threshold_from_test"] = float(DICE_THRESHOLDS[best])
    return result


# --------------------------------------------------------------------------------- helpers


def _dice(inside: Ints, outside: Ints, truth: int) -> Floats:
    return np.asarray(2 * inside / np.maximum(truth + inside + outside, 1), dtype=np.float64)


def _depth(boxes: ArrayLike, height: int, width: int) -> NDArray[np.int64]:
    """How many boxes cover the centre of each pixel."""
    result = np.zeros((height, width), dtype=np.int64)
    for left, top, right, bottom in pixel_edges(boxes, height, width):
        result[top:bottom, left:right] += 1
    return result
