"""Every preset against its published definition, and what describes it.

`definitions.py` gives what `fixtures.json` holds, and imports nothing of the package.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.prompts import PromptSet
from medclip_debias.errors import UserError
from medclip_debias.evaluation.presets import (
    OURS,
    GroundingRule,
    RetrievalRule,
    load_preset,
    preset_names,
)
from medclip_debias.evaluation.presets.grounding import (
    merge_phrases,
    score_map,
    score_pixels,
    summarise_maps,
)
from medclip_debias.evaluation.presets.retrieval import retrieval_metrics
from medclip_debias.evaluation.presets.zero_shot import (
    METRICS,
    one_of_several,
    side_scores,
    side_vectors,
    thresholds,
    zero_shot_metrics,
    zero_shot_scores,
)
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.models.region_grid import RegionGrid
from tests.evaluation.presets import definitions

FIXTURES = json.loads(definitions.FILE.read_text())
INPUTS, EXPECTED = FIXTURES["inputs"], FIXTURES["expected"]
SAME = {"rel": 0, "abs": 1e-6}


def prompt_set():
    texts = INPUTS["zero_shot"]["texts"]
    sides = {
        name: {side: [f"{name} {side} {n}" for n in range(len(own[side]))] for side in own}
        for name, own in texts.items()
    }
    vectors = {
        f"{name} {side} {n}": vector
        for name, own in texts.items()
        for side in own
        for n, vector in enumerate(own[side])
    }
    found = PromptSet(name="fixture", classes=sides)
    return found, np.array([vectors[text] for text in found.texts])


# ------------------------------------------------------------------------------ descriptions


def test_a_description_names_what_it_follows_and_metrics_that_exist():
    for preset in map(load_preset, preset_names()):
        assert preset.zero_shot is None or set(preset.zero_shot.metrics) <= set(METRICS)
        parts = {p for p in ("zero_shot", "grounding", "retrieval") if getattr(preset, p)}
        if preset.name != OURS:
            assert {part for source in preset.follows for part in source.of} == parts


def leaves(content, place=""):
    """The numbers of a content, by their places."""
    if isinstance(content, dict):
        return {
            k: v for name in content for k, v in leaves(content[name], f"{place}/{name}").items()
        }
    return {place: np.asarray(content)}


def test_the_fixtures_are_what_the_published_definitions_give():
    found, kept = leaves(definitions.expected(INPUTS)), leaves(EXPECTED)
    assert found.keys() == kept.keys()
    for place, values in kept.items():
        np.testing.assert_allclose(found[place], values, rtol=0, atol=1e-9, err_msg=place)
    for part, of in EXPECTED.items():  # and every part of a preset has one
        wanted = {n for n in preset_names() if getattr(load_preset(n), part)}
        assert set(of) == wanted - ({OURS} if part == "retrieval" else set())


# --------------------------------------------------------------------------------- zero-shot


@pytest.mark.parametrize("name", EXPECTED["zero_shot"])
def test_zero_shot_is_the_published_definition(name):
    rule, inputs, expected = load_preset(name).zero_shot, INPUTS["zero_shot"], EXPECTED["zero_shot"]
    prompts, vectors = prompt_set()
    means = side_vectors(vectors, prompts)

    def sides(part):
        images = np.array(inputs[part]["images"])
        return side_scores(rule, images @ vectors.T, prompts, images @ means.T)

    def truth(part):
        return {n: np.array(v, dtype=float) for n, v in inputs[part]["labels"].items()}

    scores, chosen = zero_shot_scores(rule, sides("test")), None
    if rule.decision == "mcc":
        there = zero_shot_scores(rule, sides("validation"))
        chosen = thresholds(there, truth("validation"))
    given = {"chosen": chosen, "positive": sides("test").positive}
    found = zero_shot_metrics(rule, scores, truth("test"), **given)
    several = sides("several").positive
    found |= one_of_several(rule, several, np.array(inputs["several"]["truth"]))
    for key, value in expected[name].items():
        if key == "scores":
            for one, own in value.items():
                assert scores[one] == pytest.approx(own, **SAME)
        else:
            assert found[key] == pytest.approx(value, **SAME), key
    assert set(rule.metrics) - {"balanced_accuracy", "average_precision"} <= set(expected[name])


def test_a_class_with_one_label_and_images_without_a_label_stand_aside():
    rule = load_preset("biovil").zero_shot
    scores = {"a": np.array([0.1, -0.2, 0.3, 9.0]), "b": np.arange(4.0)}
    truth = {"a": np.array([1.0, 0.0, 1.0, np.nan]), "b": np.zeros(4)}
    found = zero_shot_metrics(rule, scores, truth)
    assert found["refused"] == ["b"]
    assert (found["auc"], found["accuracy"]) == (1.0, 1.0)
    none = zero_shot_metrics(rule, scores, {"b": np.zeros(4)})
    assert none["auc"] is None


# --------------------------------------------------------------------------------- grounding


def grounded(name, inputs, size, input_size, fit):
    rule = load_preset(name).grounding
    phrases = inputs["phrases"]
    if name == "ours":  # the fixture's phrases are all to be grounded
        rule = rule.model_copy(update={"phrases": "all"})
    # Published maps are in equal cells wherever the model's regions lie; ours are where they do.
    grid = RegionGrid(5, 5, input_size / 6, 0.5)
    if name == "ours":
        grid = RegionGrid.patches(5, 5, input_size)
    chosen = merge_phrases(
        rule,
        [p["image"] for p in phrases],
        [p["text"] for p in phrases],
        [p["boxes"] for p in phrases],
    )
    scores = []
    for number, boxes in chosen:
        height, width = inputs["sizes"][phrases[number]["image"]]
        geometry = SquareGeometry(height, width, size, input_size, fit)
        values = np.array(phrases[number]["map"]).reshape(5, 5)
        scores.append(score_map(rule, values, boxes, geometry, grid, scale=inputs["scale"]))
    return summarise_maps(rule, scores, [phrases[number]["category"] for number, _ in chosen])


@pytest.mark.parametrize("name", EXPECTED["grounding"])
def test_grounding_is_the_published_definition(name):
    inputs = INPUTS["grounding"]
    if name == "radzero":
        kept = [p for p in inputs["phrases"] if p["text"] in inputs["alone"]]
        inputs = {**inputs, "phrases": kept}
    shapes = {"biovil": (80, 64, "crop"), "medklip": (80, 80, "squash")}
    shape = shapes.get(name, (80, 80, "pad"))
    found = grounded(name, inputs, *shape)
    for key, value in EXPECTED["grounding"][name].items():
        assert found[key] == pytest.approx(value, **SAME), key


@pytest.mark.parametrize("fit", ["pad", "crop", "squash"])
@pytest.mark.parametrize("truth", ["counts", "left_out"])
def test_counts_without_the_map_are_those_of_its_pixels(fit, truth):
    """Also where the model did not see, and of plateaus at exactly a threshold.

    A score of 0 is not above a probability of 0.5.
    """
    rng = np.random.default_rng(4)
    grid, geometry = RegionGrid(4, 5, 14.0, 0.5), SquareGeometry(41, 66, 72, 64, fit)
    values = np.maximum(rng.uniform(-0.3, 0.6, (4, 5)), 0)
    boxes = [[2.5, 3, 22, 17.5], [0, 11, 30, 26]]
    rule = GroundingRule(
        **{"grid": "regions", "thresholds": (0.1, 0.3), "unseen_truth": truth},
        **{"cnr": "signed", "dice": "best_on_test", "above": "above"},
    )
    exact = score_map(rule, values, boxes, geometry, grid, scale=14.0)
    # Rounded as the map's pixels are: a score near a threshold would decide by its last bits.
    heatmap = upsample_to_original(values, geometry, grid, dtype=np.float64).astype(np.float32)
    depth = sum(definitions.in_boxes((41, 66), [box]).astype(int) for box in boxes)
    pixels = score_pixels(rule, heatmap, depth, scale=14.0)
    for name in ("iou", "cnr", "dice"):
        assert getattr(exact, name) == pytest.approx(getattr(pixels, name), abs=1e-6)


def test_a_map_of_a_resnet_can_be_drawn_in_equal_cells_or_where_its_regions_lie():
    """hi-ml's `convert_similarity_to_image_size`: torch's bilinear resize of the grid."""
    values = np.random.default_rng(3).normal(size=(5, 5)).cumsum(0)
    geometry, grid = SquareGeometry(160, 160, 160, 160), RegionGrid(5, 5, 32, 0.5)
    boxes = [[20, 30, 50, 60]]
    depth = np.zeros((160, 160), dtype=int)
    depth[30:90, 20:70] = 1
    found = {}
    for name in ("biovil", "biovil@regions"):
        rule = load_preset(name).grounding.model_copy(update={"smoothing": 0.0})
        found[name] = score_map(rule, values, boxes, geometry, grid)
    published = F.interpolate(
        torch.from_numpy(values)[None, None], size=(160, 160), mode="bilinear"
    )[0, 0].numpy()
    drawn = upsample_to_original(values, geometry, grid, dtype=np.float64)
    for name, heatmap in (("biovil", published), ("biovil@regions", drawn)):
        expected = score_pixels(rule, heatmap, depth)
        assert found[name].iou == pytest.approx(expected.iou, abs=1e-3)
        assert found[name].cnr == pytest.approx(expected.cnr, abs=1e-6)
    assert abs(found["biovil"].cnr - found["biovil@regions"].cnr) > 0.05
    with pytest.raises(UserError, match="regions"):
        load_preset("gloria@regions")


def test_what_has_no_figure_is_left_out_and_counted():
    geometry, grid = SquareGeometry(60, 60, 64, 64), RegionGrid.patches(4, 4, 64)

    def found(name, values):
        rule = load_preset(name).grounding
        score = score_map(rule, values, [[10, 10, 20, 20]], geometry, grid)
        return summarise_maps(rule, [score], ["Opacity"])

    without_scale = found("radzero", np.linspace(-1, 1, 16).reshape(4, 4))
    assert "dice_at_best_threshold_on_test" not in without_scale
    assert "scale" in without_scale["without_dice"]
    flat = found("afloc", np.full((4, 4), 0.25))  # the same everywhere
    assert (flat["skipped"], flat["without_cnr"]) == (5, 1)


def test_images_of_one_box_are_those_whose_phrases_have_one_box_together():
    rule, box = GroundingRule(images="one_box"), [0, 0, 9, 9]
    boxes = [[box, box], [box], [box], [box]]
    assert merge_phrases(rule, [0, 1, 1, 2], list("abcd"), boxes) == [(3, [box])]


def test_pointing_takes_the_first_highest_pixel_and_a_boxs_far_edge():
    rule = load_preset("radzero").grounding
    heatmap, none = np.zeros((6, 8)), np.zeros((6, 8), dtype=int)
    heatmap[2, 5] = heatmap[4, 1] = 1.0  # row 2 comes first
    for boxes, hit in (([[3, 1, 2, 1]], 1), ([[3, 1, 1.9, 1]], 0), ([[0, 4, 3, 1]], 0)):
        assert score_pixels(rule, heatmap, none, boxes).pointing == hit


# --------------------------------------------------------------------------------- retrieval


@pytest.mark.parametrize("name", EXPECTED["retrieval"])
def test_retrieval_is_the_published_definition(name):
    inputs = INPUTS["retrieval"]
    rule = load_preset(name).retrieval
    if rule.precisions:
        rule = rule.model_copy(update={"precisions": tuple(inputs["precisions"])})
    found = retrieval_metrics(
        rule, np.array(inputs["scores"]), inputs["texts"], np.array(inputs["classes"])
    )
    for key, value in EXPECTED["retrieval"][name].items():
        assert found[key] == pytest.approx(value, **SAME), key


def test_a_precision_of_more_reports_than_there_are_is_none():
    scores, classes = np.array([[3.0, 2, 1], [0, 5, 1], [2, 1, 0]]), np.array([0, 0, 1])
    found = retrieval_metrics(RetrievalRule(precisions=(1, 5)), scores, ["a", "b", "c"], classes)
    assert (found["precision_at_1"], found["precision_at_5"]) == (pytest.approx(2 / 3), None)
