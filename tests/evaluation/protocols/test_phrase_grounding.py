"""Phrase metrics at original resolution against the direct way; means, floors by pixels."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.phrase_selection import Phrase, Phrases, phrases_of
from medclip_debias.evaluation.protocol import Draw, Skipped
from medclip_debias.evaluation.protocols.phrase_grounding import (
    OTHERS,
    PhraseGrounding,
    moved_boxes,
    others_of,
    place_prior,
)
from medclip_debias.grounding.boxes import box_mask
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.models.region_grid import RegionGrid
from tests.helpers.pixel_metrics import cnr, pointing_game

BOXES = [[12, 20, 30.5, 25], [30, 60, 20, 10]]


# ------------------------------------------------------------ floors, pixel by pixel


GRID = RegionGrid.patches(4, 4, 40.0)


def geometry(height, width):
    return SquareGeometry(height=height, width=width, size=48, input_size=40)


def phrase(number, category="Edema", shape=(60, 90), boxes=((10, 10, 20, 20),), patient=None):
    own = geometry(*shape)
    name = patient or f"p{number}"
    return Phrase(
        f"f{number}", number, category, "Edema.", [list(b) for b in boxes], own, name, True, 0
    )


def measured(phrases, maps, draw=None):
    """What the protocol measures of phrases and their maps, without validation phrases."""

    def once(compute):
        if compute is phrases_of:
            return Phrases(phrases)
        raise Skipped("none to choose a threshold on")

    model = SimpleNamespace(prompts={})
    protocol = PhraseGrounding(SimpleNamespace(once=once, options=EvaluationOptions(), model=model))
    for number, scores in enumerate(maps):
        protocol.take(number, scores, GRID)
    return protocol.measure(draw or Draw(0, 0))


def test_others_are_of_the_class_and_of_other_patients():
    phrases = [phrase(n, "AB"[n % 2], patient=f"p{n // 4}") for n in range(12)]
    for own, places in zip(phrases, others_of(phrases), strict=True):
        others = [phrases[place] for place in places]
        assert len(others) == 4
        assert {other.category for other in others} == {own.category}
        assert own.patient not in {other.patient for other in others}
    assert others_of(phrases) == others_of(phrases)
    assert others_of([phrase(0), phrase(1, "B")]) == [[], []]


@given(st.integers(40, 90), st.integers(40, 90), st.integers(0, 99))
def test_a_prior_counts_the_boxes_that_hold_each_regions_centre(height, width, seed):
    rng = np.random.default_rng(seed)
    others = []
    for number in range(4):
        shape = (int(rng.integers(50, 90)), int(rng.integers(50, 90)))
        corner = rng.uniform(0, 0.5, (2, 2)) * shape[::-1]
        boxes = np.concatenate([corner, rng.uniform(5, 25, (2, 2))], axis=1)
        others.append(phrase(number, shape=shape, boxes=boxes.tolist()))
    own = geometry(height, width)
    found = place_prior(others, own, GRID)
    for row in range(4):
        for column in range(4):
            x, y = own.to_original(GRID.centres()[row, column])
            inside = 0
            for other in others:
                scaled = moved_boxes(other.boxes, other.geometry, own)
                inside += any(a <= x < a + w and b <= y < b + h for a, b, w, h in scaled)
            assert found[row, column] == pytest.approx(inside / 4)


def test_floors_equal_the_metrics_on_full_pixel_maps_with_other_boxes():
    rng = np.random.default_rng(3)
    phrases = [
        phrase(
            n,
            shape=((60, 90), (90, 60), (70, 70))[n % 3],
            boxes=[[*rng.uniform(2, 30, 2), *rng.uniform(8, 25, 2)]],
        )
        for n in range(4)
    ]
    maps = rng.normal(size=(4, 4, 4)).astype(np.float32)
    results = measured(phrases, maps, Draw(200, 0))
    others = others_of(phrases)
    own, laid, prior, hits = [], [], [], []
    for number, each in enumerate(phrases):
        pixels = upsample_to_original(maps[number], each.geometry, GRID)
        shape = each.geometry.height, each.geometry.width
        own.append(cnr(pixels, box_mask(each.boxes, *shape), signed=True))
        masks = [
            box_mask(moved_boxes(phrases[o].boxes, phrases[o].geometry, each.geometry), *shape)
            for o in others[number][:OTHERS]
        ]
        laid.append(np.mean([cnr(pixels, mask, signed=True) for mask in masks]))
        mean = place_prior([phrases[o] for o in others[number]], each.geometry, GRID)
        mean_pixels = upsample_to_original(mean.astype(np.float32), each.geometry, GRID)
        prior.append(cnr(mean_pixels, box_mask(each.boxes, *shape), signed=True))
        hits.append(pointing_game(mean_pixels, box_mask(each.boxes, *shape)))
    assert results.details["floors"]["phrases"] == 4
    for metric, group, expected in (
        ("cnr_signed", "other images' boxes", laid),
        ("cnr_signed", "place prior", prior),
        ("pointing_game", "place prior", hits),
        ("cnr_above_others", None, np.subtract(own, laid)),
    ):
        assert results.value(metric, group=group) == pytest.approx(np.mean(expected), abs=1e-5)


def test_a_phrase_alone_in_its_class_has_no_floor_and_is_counted():
    phrases = [phrase(0), phrase(1), phrase(2, "Mass")]
    maps = np.random.default_rng(0).normal(size=(3, 4, 4)).astype(np.float32)
    results = measured(phrases, maps)
    assert results.details["floors"]["phrases"] == 2
    assert results.value("cnr", group="category: Mass") is not None
    assert results.value("cnr_above_others", group="category: Mass") is None
    assert (results.row("cnr").n, results.row("cnr_above_others").n) == (3, 2)
    alone = measured(phrases[2:], maps[2:])
    assert alone.details["floors"] == {"phrases": 0, "images_tried": OTHERS}
    assert alone.value("cnr_above_others") is None
