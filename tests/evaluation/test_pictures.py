"""One scale for all pictures of an evaluation, from the scores outside the true boxes."""

from __future__ import annotations

import numpy as np
import pytest

from medclip_debias.evaluation.pictures import one_scale


def test_the_reference_is_the_percentile_of_the_scores_outside_the_boxes():
    rng = np.random.default_rng(0)
    maps = [rng.uniform(-1, 1, (400, 300)) for _ in range(3)]
    boxes = [[(0, 0, 300, 100)], [(10, 20, 30, 40), (0, 390, 300, 10)], []]
    outside = []
    for heatmap, own in zip(maps, boxes, strict=True):
        keep = np.ones(heatmap.shape, bool)
        for x, y, width, height in own:
            keep[y : y + height, x : x + width] = False
        outside.append(heatmap[keep])
        heatmap[~keep] = 3.0  # the highest scores of all, in a box
    expected = np.mean([np.quantile(scores, 0.95) for scores in outside])  # alike in distribution
    scale = one_scale(zip(maps, boxes, strict=True))
    assert scale.reference == pytest.approx(expected, abs=5e-3)
    assert scale.limits == pytest.approx((0.0, 3.0), abs=2e-2)


def test_what_the_model_did_not_see_counts_nowhere_and_without_a_place_outside_there_is_no_scale():
    heatmap = np.full((20, 20), np.nan)
    heatmap[5:15, 5:15] = 0.25
    scale = one_scale([(heatmap, [(5, 5, 5, 10)])])
    assert scale.reference == pytest.approx(0.25)
    assert one_scale([(heatmap, [(5, 5, 10, 10)])]) is None
