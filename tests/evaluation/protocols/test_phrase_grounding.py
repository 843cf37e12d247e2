"""Phrase metrics at original resolution against the direct way; means and floors."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.evaluation.options import BoxRule
from medclip_debias.evaluation.protocol import Draw
from medclip_debias.evaluation.protocols.phrase_grounding import phrase_metrics, phrase_rows
from medclip_debias.evaluation.upsampled import Upsampled
from medclip_debias.grounding.boxes import box_mask
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.models.region_grid import RegionGrid

BOXES = [[12, 20, 30.5, 25], [30, 60, 20, 10]]


@pytest.mark.parametrize("shape", [(90, 130), (130, 90), (400, 100)])
def test_a_phrase_is_scored_as_the_definitions_say(shape):
    geometry = SquareGeometry(*shape, 64, 56)
    grid = np.random.default_rng(0).uniform(-0.5, 0.9, (7, 7)).astype(np.float32)
    places = RegionGrid(7, 7, stride=8.0, first=0.5)
    heatmap = Upsampled(grid, geometry, places, BOXES)
    found = phrase_metrics(heatmap, BOXES, BoxRule())
    heat = upsample_to_original(grid, geometry, places).astype(np.float64)
    mask = box_mask(BOXES, *shape)
    inside, outside = heat[mask & ~np.isnan(heat)], heat[~mask & ~np.isnan(heat)]
    contrast = (inside.mean() - outside.mean()) / np.sqrt(inside.var() + outside.var())
    # The pixels are rounded to float32, the closed form is not.
    assert found["cnr_signed"] == pytest.approx(contrast, rel=1e-7)
    assert found["cnr"] == pytest.approx(abs(contrast), rel=1e-7)
    for name, ks in (("miou", range(-20, 21)), ("miou_middle", range(2, 11))):
        ious = [
            ((heat >= k / 20) & mask).sum() / (((heat >= k / 20) | mask).sum() + 1e-6) for k in ks
        ]
        assert found[name] == pytest.approx(np.mean(ious), rel=1e-12)
    assert found["pointing_game"] == float(mask.flat[np.nanargmax(heat)])
    assert found["area"] == mask.mean()


def test_a_box_out_of_view_scores_zero():
    geometry = SquareGeometry(100, 100, 100, 60)
    scores = np.random.default_rng(1).random((6, 6))
    box = [[0, 0, 15, 15]]
    heatmap = Upsampled(scores, geometry, RegionGrid.patches(6, 6, 60), box)
    found = phrase_metrics(heatmap, box, BoxRule())
    assert found["cnr"] == found["miou"] == found["pointing_game"] == 0


def test_means_over_phrases_and_categories_with_intervals():
    rng = np.random.default_rng(2)
    rows = [
        {
            "cnr": float(v),
            "cnr_signed": float(v),
            "miou": 0.2,
            "miou_middle": 0.3,
            "pointing": float(v > 1),
            "area": 0.174,
        }
        for v in rng.uniform(0, 2, 60)
    ]
    kinds = ["Edema" if i % 3 else "Pneumonia" for i in range(60)]
    patients = [str(i // 2) for i in range(60)]
    items = pd.DataFrame(rows).assign(category=kinds, patient=patients, sentence_count=0)
    found = phrase_rows(items, Draw(200))
    found = {(row.metric, row.group): row for row in found}
    whole, edema = found["cnr", None], found["cnr", "category: Edema"]
    assert whole.value == pytest.approx(np.mean([row["cnr"] for row in rows]))
    own = [row["cnr"] for row, kind in zip(rows, kinds, strict=True) if kind == "Edema"]
    assert edema.value == pytest.approx(np.mean(own))
    assert edema.n == 40
    assert whole.low < whole.value < whole.high
    assert edema.low < edema.value < edema.high
    assert found["miou", None][2:4] == pytest.approx((0.2, 0.2))
    assert found["miou", "chance"].value == pytest.approx(0.174 * 21 / 41)
