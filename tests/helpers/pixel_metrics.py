"""Heatmap metrics pixel by pixel, as their definitions say: what the closed forms are held against.

NaN marks pixels that the model did not see: they count neither inside nor outside, but a truth
pixel among them stays part of the truth in the overlap.
"""

from __future__ import annotations

import numpy as np

THRESHOLDS = np.arange(-20, 21) / 20


def seen(scores, mask):
    """Seen scores inside and outside the mask, in double precision."""
    known = ~np.isnan(scores)
    return scores[mask & known].astype(float), scores[~mask & known].astype(float)


def cnr(scores, mask, *, signed=False):
    """Contrast-to-noise ratio; 0 where it is undefined."""
    inside, outside = seen(scores, mask)
    if not inside.size or not outside.size or np.ptp(np.concatenate([inside, outside])) == 0:
        return 0.0
    spread = np.sqrt(inside.var() + outside.var())
    if np.ptp(inside) == np.ptp(outside) == 0:
        return 0.0
    found = float((inside.mean() - outside.mean()) / spread)
    return found if signed else abs(found)


def ious(scores, mask, thresholds=THRESHOLDS):
    """Intersection over union (+ 1e-6) of ``score >= t`` and the mask, for each threshold."""
    inside, outside = seen(scores, mask)
    hits = np.array([(inside >= t).sum() for t in thresholds])
    return hits / (mask.sum() + np.array([(outside >= t).sum() for t in thresholds]) + 1e-6)


def miou(scores, mask, thresholds=THRESHOLDS):
    """Mean of `ious`."""
    return float(ious(scores, mask, thresholds).mean())


def pointing_game(scores, mask):
    """Share of the highest pixels that lie inside the mask."""
    inside, outside = seen(scores, mask)
    if not inside.size or not outside.size:
        return float(inside.size > 0)
    highest = max(inside.max(), outside.max())
    hit = int((inside == highest).sum())
    return hit / (hit + int((outside == highest).sum()))
