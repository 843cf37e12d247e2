"""Phrase grounding: does a sentence score higher inside its boxes than elsewhere?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.evaluation.bootstrap import bootstrap_intervals, weighted_mean
from medclip_debias.evaluation.metrics import MIDDLE_THRESHOLDS, THRESHOLDS, Split
from medclip_debias.grounding.boxes import box_mask
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.models.region_grid import RegionGrid

Floats = NDArray[np.float64]
METRICS = ("cnr", "cnr_signed", "miou", "miou_middle", "pointing_game")


def score_phrase(
    grid_map: NDArray[np.floating],
    boxes: ArrayLike,
    geometry: SquareGeometry,
    grid: RegionGrid,
    *,
    smoothing: float = 0.0,
) -> dict[str, float]:
    """Metrics of one phrase, at the resolution of its original image.

    Args:
        grid_map: region-sentence cosines ``[rows, columns]``.
        boxes: ``[K, 4]`` of x, y, width, height in original pixels; their union is the truth.
        geometry: the image's way into the model.
        grid: where the regions lie in the model's input.
        smoothing: sigma of a Gaussian over the grid, in cells; 0 for none.

    Returns:
        `METRICS`, and ``area``: the truth's share of the image.
    """
    heatmap = upsample_to_original(grid_map, geometry, grid, smoothing=smoothing)
    mask = box_mask(boxes, geometry.height, geometry.width)
    split = Split.of(heatmap, mask)
    contrast = split.cnr(signed=True)
    return {
        "cnr": abs(contrast),
        "cnr_signed": contrast,
        "miou": float(split.iou(THRESHOLDS).mean()),
        "miou_middle": float(split.iou(MIDDLE_THRESHOLDS).mean()),
        "pointing_game": split.pointing_game(),
        "area": float(mask.mean()),
    }


def summarise_phrases(
    rows: Sequence[dict[str, float]],
    categories: Sequence[str],
    patients: Sequence[str],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """Means over phrases, overall and per category, with intervals.

    The floors of the overlap metrics come along: ``miou_floor`` is the mIoU of a map that is
    zero everywhere (21 of 41 thresholds take the whole image), ``pointing_game_floor`` the
    hit rate of a random pixel; both are set by the boxes' areas alone.

    Args:
        rows: `score_phrase` of each phrase.
        categories: category of each phrase.
        patients: patient of each phrase.
        resamples: bootstrap resamples of the patients.
        seed: of the bootstrap.
    """
    values = {metric: np.array([row[metric] for row in rows]) for metric in METRICS}
    area = np.array([row["area"] for row in rows])
    kinds = np.asarray(categories, dtype=object)
    groups = {kind: kinds == kind for kind in sorted(set(categories))}

    def statistics(weights: Floats) -> dict[str, Floats]:
        result = {metric: weighted_mean(values[metric], weights) for metric in METRICS}
        for kind, members in groups.items():
            for metric in METRICS:
                name = f"{kind}/{metric}"
                result[name] = weighted_mean(values[metric][members], weights[:, members])
        return result

    intervals = bootstrap_intervals(statistics, patients, resamples=resamples, seed=seed)
    return {
        **{metric: float(values[metric].mean()) for metric in METRICS},
        "interval": {metric: intervals[metric] for metric in METRICS},
        "phrases": len(rows),
        "patients": len(set(patients)),
        "area": float(area.mean()),
        "miou_floor": float(area.mean()) * float((THRESHOLDS <= 0).mean()),
        "pointing_game_floor": float(area.mean()),
        "categories": {
            kind: {
                **{metric: float(values[metric][members].mean()) for metric in METRICS},
                "interval": {metric: intervals[f"{kind}/{metric}"] for metric in METRICS},
                "phrases": int(members.sum()),
                "area": float(area[members].mean()),
            }
            for kind, members in groups.items()
        },
    }
