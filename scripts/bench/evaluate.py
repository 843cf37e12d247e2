"""Time the measuring of phrases after encoding, beside the direct way on every pixel.

    python scripts/bench/evaluate.py [PHRASES]

Generated maps of 15 x 15 regions on images of 3056 x 2544 pixels, with one to three boxes each. The
direct way upsamples each map and passes over its pixels; it is timed on a few phrases only, and
the metrics of both are compared.
"""

from __future__ import annotations

import sys
import time

import numpy as np
from scipy.ndimage import find_objects, label

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.evaluation.metrics import MIDDLE_THRESHOLDS, THRESHOLDS, UNION_EPSILON
from medclip_debias.evaluation.protocols.phrase_grounding import best_overlaps, score_phrase
from medclip_debias.grounding.boxes import box_mask
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.models.region_grid import RegionGrid

HEIGHT, WIDTH = 3056, 2544
DIRECT = 5
GEOMETRY = SquareGeometry(HEIGHT, WIDTH, 512, 480)
GRID = RegionGrid(15, 15, stride=32.0, first=0.5)


def phrase(seed: int) -> tuple[np.ndarray, list[list[float]]]:
    """A smooth map of cosines and one to three boxes."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:15, :15]
    centre = rng.uniform(2, 12, 2)
    bump = np.exp(-((y - centre[0]) ** 2 + (x - centre[1]) ** 2) / rng.uniform(4, 20))
    scores = 0.6 * bump + rng.normal(0, 0.08, (15, 15))
    boxes = [
        [*rng.uniform(100, 1500, 2), *rng.uniform(150, 900, 2)] for _ in range(rng.integers(1, 4))
    ]
    return scores.astype(np.float32), [[float(side) for side in box] for box in boxes]


def direct(scores: np.ndarray, boxes: list[list[float]]) -> dict[str, float]:
    """The definitions, pixel by pixel."""
    heatmap = upsample_to_original(scores, GEOMETRY, GRID)
    mask = box_mask(boxes, HEIGHT, WIDTH)
    known = ~np.isnan(heatmap)
    seen, inside, outside = (heatmap[part & known] for part in (known, mask, ~mask))
    ious = {
        t: (inside >= t).sum() / (mask.sum() + (outside >= t).sum() + UNION_EPSILON)
        for t in THRESHOLDS
    }
    gap = inside.mean(dtype=float) - outside.mean(dtype=float)
    spread = np.sqrt(inside.var(dtype=float) + outside.var(dtype=float))
    low, high = float(seen.min()), float(seen.max())
    numbers, count = label(
        heatmap >= np.float64(low + 0.5 * (high - low)), structure=np.ones((3, 3))
    )
    found = [
        [c.start, r.start, c.stop - c.start, r.stop - r.start]
        for r, c in find_objects(numbers, count)
    ]
    return {
        "cnr": float(abs(gap) / spread),
        "miou": float(np.mean(list(ious.values()))),
        "miou_middle": float(np.mean([ious[t] for t in MIDDLE_THRESHOLDS])),
        "pointing_game": float(inside.max() > outside.max()),
        "box_recall_0.1": float((best_overlaps(boxes, found) >= 0.1).mean()),
    }


def main() -> None:
    """Print seconds a thousand phrases and the largest difference between both ways."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    score_phrase(*phrase(0), GEOMETRY, GRID)  # imports
    made = [phrase(seed) for seed in range(count)]
    began = time.perf_counter()
    ours = [score_phrase(scores, boxes, GEOMETRY, GRID) for scores, boxes in made]
    closed = (time.perf_counter() - began) / count
    began = time.perf_counter()
    pixels = [direct(scores, boxes) for scores, boxes in made[:DIRECT]]
    slow = (time.perf_counter() - began) / len(pixels)
    apart = max(abs(a[k] - b[k]) for a, b in zip(ours, pixels, strict=False) for k in b)
    print("| way | seconds for 1,000 phrases | times ours |\n| --- | ---: | ---: |")
    print(f"| closed form (ours), {count} measured | {1000 * closed:.1f} | 1.0 |")
    print(f"| every pixel, {len(pixels)} measured | {1000 * slow:.1f} | {slow / closed:.1f} |")
    print(f"\nLargest difference of a metric: {apart:.2g}")


if __name__ == "__main__":
    main()
