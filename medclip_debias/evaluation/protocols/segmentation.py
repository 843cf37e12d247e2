"""Segmentation: does the map of a finding's sentence cover the finding's mask?

Each sentence that has a mask is judged on its own image at the mask's pixels. A map is cut at a
share of its range (0 its lowest, 1 its highest score). The share is chosen on the masks of the
``validate`` split, where the mean Dice is highest; it may also be fixed (the option ``boxes``).
Papers that choose it on the test images report ``dice_test_threshold``, which is no result of a
method: it is given under that name alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.masks import decode
from medclip_debias.evaluation.bootstrap import Statistics, mean_of_defined, weighted_mean
from medclip_debias.evaluation.catalogue import CHANCE
from medclip_debias.evaluation.maps import MapProtocol
from medclip_debias.evaluation.options import BoxRule
from medclip_debias.evaluation.phrase_selection import (
    VALIDATE,
    Phrase,
    phrases_of,
    select_phrases,
)
from medclip_debias.evaluation.protocol import (
    Draw,
    Measured,
    NotAsked,
    Request,
    Skipped,
    columns_of,
)
from medclip_debias.evaluation.table import Row
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.models.region_grid import RegionGrid

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
SHARES = np.arange(1, 20) / 20
"""Shares of a map's range at which it is cut: 0.05, 0.10, ..., 0.95."""
LONGEST = 1024
"""Longer side at which a mask is judged, in pixels; of a larger one every k-th pixel is taken."""
METRICS = ("dice", "iou", "dice_fixed", "pointing_game")


def score_mask(heat: NDArray[np.floating], inside: Bools, rule: BoxRule) -> dict[str, Any]:
    """What one map has of one mask ``[H, W]`` with at least one pixel; a map is NaN where unseen.

    Returns:
        ``curve`` ``[19]``, Dice at each of `SHARES`; ``dice_fixed``; ``pointing_game``, the share
        of the highest pixels that lie in the mask; ``area``, the mask's share of the image. Pixels
        that the model did not see are never found, and count in the mask.
    """
    area = int(inside.sum())
    seen = ~np.isnan(heat)
    if not seen.any():
        nothing = {"curve": np.zeros(len(SHARES)), "dice_fixed": 0.0, "pointing_game": 0.0}
        return nothing | {"area": area / inside.size}
    values, truth = heat[seen].astype(np.float64), inside[seen]
    low, high = float(values.min()), float(values.max())
    # Rounding must not decide whether a pixel reaches a share that it stands at.
    shares = np.round((values - low) / (high - low), 9) if high > low else np.zeros(len(values))
    reached = np.searchsorted(SHARES, shares, side="right")
    # How many reach each share, from how many reach exactly so many of them.
    reaching, common = (
        np.cumsum(np.bincount(part, minlength=len(SHARES) + 1)[::-1])[::-1][1:].astype(np.float64)
        for part in (reached, reached[truth])
    )
    fixed = values >= rule.value if rule.rule == "score" else shares >= rule.value
    highest = values == high
    return {
        "curve": 2 * common / (reaching + area),
        "dice_fixed": float(2 * (fixed & truth).sum() / (fixed.sum() + area)),
        "pointing_game": float(truth[highest].mean()),
        "area": area / inside.size,
    }


def mask_statistics(
    classes: Sequence[str], values: Mapping[str, Floats], curves: Floats | None = None
) -> Statistics:
    """Means over the classes of their masks' means, and those means as ``CLASS/METRIC``.

    With Dice of each mask at `SHARES` ``[masks, 19]`` also ``dice_test_threshold``: the highest
    mean at one share for all.
    """
    names = np.asarray(classes, dtype=object)
    members = {name: names == name for name in sorted(set(classes))}

    def statistics(weights: Floats) -> dict[str, Floats]:
        result = {}
        for metric, of_mask in values.items():
            own = {
                name: weighted_mean(of_mask[part], weights[:, part])
                for name, part in members.items()
            }
            result[metric] = mean_of_defined(list(own.values()))
            result |= {f"{name}/{metric}": value for name, value in own.items()}
        if curves is not None:
            with np.errstate(invalid="ignore"):  # NaN where all weights of a class are 0
                at = [
                    (weights[:, part] @ curves[part]) / weights[:, part].sum(axis=1, keepdims=True)
                    for part in members.values()
                ]
            result["dice_test_threshold"] = mean_of_defined(at).max(axis=-1)
        return result

    return statistics


def best_share(curves: Floats, classes: Sequence[str]) -> int:
    """Number of the share with the highest mean over classes of mean Dice; the lowest of equals."""
    names = np.asarray(classes, dtype=object)
    means = [curves[names == name].mean(axis=0) for name in sorted(set(classes))]
    return int(np.mean(means, axis=0).argmax())


class Segmentation(MapProtocol):
    """The protocol: every sentence's map against its mask.

    Judged are the sentences of the evaluated split that have a mask; the threshold is chosen on
    those of the ``validate`` split, where that is not the evaluated one.
    """

    name, file = "segmentation", "masks"
    truth = ("area",)

    def __init__(self, request: Request) -> None:
        data, options, masks = request.data, request.options, request.data.masks
        if request.phrases is not None or not masks:
            raise NotAsked("The set's archive has no masks.")
        selected = request.once(phrases_of).phrases
        self._judged = [phrase for phrase in selected if phrase.phrase_id in masks]
        if not self._judged:
            raise Skipped(f"No sentence of the split '{request.split}' has a mask.")
        there: list[Phrase] = []
        if request.split != VALIDATE:
            size, choice = request.model.preprocessing.input_size, options.annotation_split
            with suppress(Skipped):
                there = select_phrases(data, VALIDATE, size, None, choice, options.views).phrases
        splits = data.images["split"]
        there = [p for p in there if p.phrase_id in masks and splits.iloc[p.row] == VALIDATE]
        self._phrases = [*self._judged, *there]
        self._masks, self._options = masks, options
        self._without_mask = len(selected) - len(self._judged)
        self.ask(request, [p.row for p in self._phrases], [p.text for p in self._phrases])
        self._scores: dict[int, dict[str, Any]] = {}

    def take(self, number: int, scores: NDArray[np.float32], grid: RegionGrid) -> None:
        phrase, options = self._phrases[number], self._options
        inside = _at_most(decode(self._masks[phrase.phrase_id]))
        geometry = replace(phrase.geometry, height=inside.shape[0], width=inside.shape[1])
        heat = upsample_to_original(scores, geometry, grid, smoothing=options.smoothing)
        self._scores[number] = score_mask(heat, inside, options.boxes)

    def measure(self, draw: Draw) -> Measured:
        count, classes = len(self._judged), [phrase.category for phrase in self._phrases]
        judged, others = classes[:count], classes[count:]
        scores = [self._scores[number] for number in range(len(classes))]
        curves = np.array([score["curve"] for score in scores])
        head = {
            "id": [phrase.phrase_id for phrase in self._judged],
            "patient": [phrase.patient for phrase in self._judged],
            "category": judged,
        }
        threshold: dict[str, Any] = {"reason": "no masks of the split 'validate' to choose it on"}
        chosen: dict[str, Floats] = {}
        if others:
            best = best_share(curves[count:], others)
            dice = curves[:count, best]
            chosen = {"dice": dice, "iou": dice / (2 - dice)}
            threshold = {"share_of_range": float(SHARES[best]), "masks": len(others)}
        curves = curves[:count]
        fixed = pd.DataFrame(scores[:count])[["dice_fixed", "pointing_game", "area"]]
        items = pd.concat([pd.DataFrame(head | chosen), fixed], axis=1)
        values = {name: items[name].to_numpy() for name in METRICS if name in items}
        estimates = draw.estimates(mask_statistics(judged, values, curves), head["patient"])
        areas = mask_statistics(judged, {"area": items["area"].to_numpy()})(np.ones((1, count)))
        measured = estimates.rows(n=count)
        measured.append(Row("pointing_game", float(areas["area"][0]), group=CHANCE))
        measured += estimates.class_rows(judged)
        details = {
            "masks": count,
            "without_mask": self._without_mask,
            "patients": items["patient"].nunique(),
            "threshold": threshold,
            "test_threshold": {"share_of_range": float(SHARES[best_share(curves, judged)])},
            "longest_side": LONGEST,
        }
        return Measured(measured, details, items)

    @classmethod
    def statistics(cls, details: Mapping[str, Any], items: pd.DataFrame) -> Statistics:
        """The metrics that need no threshold of the test."""
        del details
        there = [name for name in METRICS if name in items.columns]
        values = dict(zip(there, columns_of(items, *there), strict=True))
        return mask_statistics(items["category"].tolist(), values)


def _at_most(inside: Bools) -> Bools:
    """A mask whose longer side is at most `LONGEST`: every k-th pixel, from the middle of k."""
    step = -(-max(inside.shape) // LONGEST)
    return inside if step == 1 else inside[step // 2 :: step, step // 2 :: step]
