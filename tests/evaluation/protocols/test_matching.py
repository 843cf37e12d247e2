"""Boxes one to one: against every permutation, scipy's assignment and scikit-learn's precision."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import average_precision_score

from medclip_debias.evaluation.protocols.sentence_boxes import (
    average_precision,
    hits_in_order,
    one_to_one,
)
from medclip_debias.grounding.boxes import overlaps

box = st.tuples(*[st.integers(0, 6)] * 2, *[st.integers(1, 6)] * 2)
boxes = st.lists(box, max_size=5)


def iou(a, b):
    """IoU of two boxes by counting unit squares."""
    cells = [
        {(x, y) for x in range(one[0], one[0] + one[2]) for y in range(one[1], one[1] + one[3])}
        for one in (a, b)
    ]
    return len(cells[0] & cells[1]) / len(cells[0] | cells[1])


@given(boxes, boxes, st.sampled_from([0.1, 0.3, 0.5]))
def test_one_to_one_is_the_best_of_all_assignments(truth, found, level):
    near = np.array([[iou(a, b) >= level for b in found] for a in truth]).reshape(
        len(truth), len(found)
    )
    np.testing.assert_array_equal(overlaps(truth, found) >= level, near)
    short = near if len(truth) <= len(found) else near.T
    best = max(
        sum(short[i, j] for i, j in enumerate(order))
        for order in permutations(range(short.shape[1]), short.shape[0])
    )
    rows, columns = linear_sum_assignment(near, maximize=True)
    assert one_to_one(truth, found, level) == best == near[rows, columns].sum()
    assert hits_in_order(truth, found, level).sum() <= best


def test_a_second_box_on_one_truth_is_wrong_and_a_taken_truth_leaves_the_next_best():
    truth = [[0, 0, 10, 10], [0, 4, 10, 10]]
    assert hits_in_order(truth, [truth[0], truth[0]], 0.5).tolist() == [True, False]
    assert hits_in_order(truth, [truth[0], [0, 1, 10, 10]], 0.5).tolist() == [True, True]
    assert hits_in_order(truth, [], 0.5).size == one_to_one([], truth, 0.5) == 0


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_is_that_of_scikit_learn_times_the_share_that_is_found(seed):
    rng = np.random.default_rng(seed)
    hits = [rng.random(rng.integers(0, 4)) < 0.4 for _ in range(40)]
    hits[0] = np.array([True])
    confidences = [rng.integers(0, 9, len(own)) / 9 for own in hits]  # with ties
    truths = [int(own.sum() + rng.integers(0, 2)) for own in hits]
    weights = rng.integers(0, 3, (3, 40)).astype(float)
    weights[0] = 1
    values = average_precision(hits, confidences, np.array(truths, dtype=float), weights)
    hit, sure = np.concatenate(hits), np.concatenate(confidences)
    for w, value in zip(weights, values, strict=True):
        each = np.repeat(w, [len(own) for own in hits])
        rank = average_precision_score(hit, sure, sample_weight=each)
        recall = (each * hit).sum() / (w @ np.array(truths))
        assert value == pytest.approx(rank * recall, rel=1e-12)
