"""Every metric against plain loops, scikit-learn, or a case whose answer is known."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from medclip_debias.evaluation.metrics import (
    MIDDLE_THRESHOLDS,
    THRESHOLDS,
    auc,
    cnr,
    count_at_least,
    first_relevant_rank,
    mean_ranks,
    median_rank,
    miou,
    pointing_game,
    recall_at,
)

RNG = np.random.default_rng(0)


def random_case(seed, with_nan=True):
    rng = np.random.default_rng(seed)
    scores = rng.uniform(-1, 1, (13, 17)).astype(np.float32)
    mask = np.zeros((13, 17), dtype=bool)
    top, left = rng.integers(0, 8, 2)
    mask[top : top + rng.integers(1, 6), left : left + rng.integers(1, 8)] = True
    if with_nan:
        scores[:2] = np.nan
        scores[:, -1] = np.nan
    return scores, mask


def test_the_thresholds_are_the_41_of_the_paper():
    assert THRESHOLDS.tolist() == [k / 20 for k in range(-20, 21)]
    assert MIDDLE_THRESHOLDS.tolist() == [0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5]


@pytest.mark.parametrize("seed", range(10))
def test_cnr_equals_its_formula_over_the_pixels(seed):
    scores, mask = random_case(seed)
    inside = [float(s) for s, m in zip(scores.flat, mask.flat, strict=True) if m and s == s]
    outside = [float(s) for s, m in zip(scores.flat, mask.flat, strict=True) if not m and s == s]
    if not inside:
        assert cnr(scores, mask) == 0
        return
    mean_in, mean_out = math.fsum(inside) / len(inside), math.fsum(outside) / len(outside)
    var_in = math.fsum((s - mean_in) ** 2 for s in inside) / len(inside)
    var_out = math.fsum((s - mean_out) ** 2 for s in outside) / len(outside)
    expected = (mean_in - mean_out) / math.sqrt(var_in + var_out)
    assert cnr(scores, mask, signed=True) == pytest.approx(expected, rel=1e-9)
    assert cnr(scores, mask) == pytest.approx(abs(expected), rel=1e-9)


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("thresholds", [THRESHOLDS, MIDDLE_THRESHOLDS])
def test_miou_equals_one_pass_for_each_threshold(seed, thresholds):
    scores, mask = random_case(seed)
    scores = np.round(scores, 2)  # many scores sit on or beside a threshold
    values = []
    for t in thresholds:
        found = scores.astype(np.float64) >= t
        values.append((found & mask).sum() / ((found | mask).sum() + 1e-6))
    assert miou(scores, mask, thresholds) == pytest.approx(np.mean(values), rel=1e-12)


def test_an_all_zero_map_has_the_known_floor():
    mask = np.zeros((100, 100), dtype=bool)
    mask[:60, :29] = True  # area .174
    assert miou(np.zeros((100, 100), np.float32), mask) == pytest.approx(0.174 * 21 / 41, abs=1e-6)
    assert round(miou(np.zeros((100, 100), np.float32), mask), 3) == 0.089


@given(
    values=st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=30),
    near=st.lists(st.integers(-20, 20), max_size=10),
)
def test_counting_in_single_precision_equals_comparing_in_double(values, near):
    # 0.15 in float32 lies above 0.15 in float64, 0.35 below: neighbours of thresholds matter.
    edge = np.array([k / 20 for k in near], dtype=np.float32)
    array = np.concatenate([np.array(values, np.float32), edge, np.nextafter(edge, np.float32(-2))])
    expected = [int((array.astype(np.float64) >= t).sum()) for t in THRESHOLDS]
    assert count_at_least(array, THRESHOLDS).tolist() == expected


def test_degenerate_maps_and_masks():
    flat = np.full((5, 5), 0.3, np.float32)
    none, all_of_it = np.zeros((5, 5), bool), np.ones((5, 5), bool)
    some = none.copy()
    some[1, 1] = True
    assert cnr(flat, some) == 0
    assert cnr(flat, none) == cnr(flat, all_of_it) == 0
    assert miou(flat, none) == 0
    assert pointing_game(flat, none) == 0
    assert pointing_game(flat, all_of_it) == 1
    assert pointing_game(flat, some) == pytest.approx(1 / 25)  # a random pixel
    large, half = np.full((301, 307), 0.1, np.float32), np.zeros((301, 307), bool)
    half[:, :111] = True
    assert cnr(large, half) == 0  # rounding in a sum must not pass for variance
    unseen = flat.copy()
    unseen[1, 1] = np.nan
    assert cnr(unseen, some) == miou(unseen, some) == pointing_game(unseen, some) == 0
    with pytest.raises(ValueError, match="differ in shape"):
        cnr(flat, np.zeros((4, 5), bool))


def test_pointing_game_looks_at_the_highest_seen_pixel():
    scores, mask = np.zeros((4, 4), np.float32), np.zeros((4, 4), bool)
    mask[1, 1], scores[1, 1] = True, 0.5
    assert pointing_game(scores, mask) == 1
    scores[3, 3] = 0.6
    assert pointing_game(scores, mask) == 0
    scores[3, 3] = np.nan
    assert pointing_game(scores, mask) == 1


@given(
    labels=st.lists(st.booleans(), min_size=2, max_size=40),
    seed=st.integers(0, 1000),
    levels=st.integers(1, 50),
)
@settings(deadline=None)
def test_auc_equals_scikit_learn_also_with_ties(labels, seed, levels):
    scores = np.random.default_rng(seed).integers(0, levels, len(labels)) / 7
    if len(set(labels)) < 2:
        assert math.isnan(auc(labels, scores))
    else:
        assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)


def test_mean_ranks_share_ties():
    assert mean_ranks([3, 1, 3, 2]).tolist() == [3.5, 1, 3.5, 2]


def test_ranks_equal_the_average_over_random_orders_of_ties():
    rng = np.random.default_rng(3)
    scores = rng.integers(0, 4, (6, 9)).astype(float)
    relevant = rng.random((6, 9)) < 0.3
    relevant[np.arange(6), np.arange(6)] = True
    found = first_relevant_rank(scores, relevant, block=4)
    for query in range(6):
        draws = []
        for _ in range(4000):
            order = np.lexsort((rng.random(9), -scores[query]))
            draws.append(1 + np.flatnonzero(relevant[query][order])[0])
        assert found[query] == pytest.approx(np.mean(draws), abs=5 * np.std(draws) / 60 + 1e-9)


def test_a_single_relevant_candidate_gets_the_mean_rank_of_its_ties():
    scores = np.array([[0.9, 0.5, 0.5, 0.5, 0.1]])
    relevant = np.array([[False, False, True, False, False]])
    assert first_relevant_rank(scores, relevant).tolist() == [3]
    with pytest.raises(ValueError, match="no relevant candidate"):
        first_relevant_rank(scores, np.zeros((1, 5), bool))


def test_recall_and_median_of_ranks():
    ranks = [1, 10, 10.5, 200]
    assert recall_at(ranks, 10) == 0.5
    assert recall_at(ranks, 50) == 0.75
    assert median_rank(ranks) == 10.25
