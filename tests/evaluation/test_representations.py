"""Probes against loops, scikit-learn and known geometry; detectors of false negatives by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias.errors import UserError
from medclip_debias.evaluation.probe import (
    auc_with_interval,
    detection,
    detectors,
    few_labels,
    linear_probe,
    most_similar,
    nearest_neighbours,
    uniformity,
)
from medclip_debias.evaluation.protocol import Draw
from medclip_debias.losses import ContrastiveBatch
from medclip_debias.losses.policies.fnc import FalseNegativeCancellation, FNCSettings


def unit(rng, n, d):
    x = rng.normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@settings(max_examples=25)
@given(st.integers(0, 1000), st.integers(2, 40), st.integers(1, 7))
def test_uniformity_is_the_loop_over_all_pairs(seed, n, block):
    x = unit(np.random.default_rng(seed), n, 5)
    pairs = itertools.permutations(x, 2)
    expected = np.log(np.mean([np.exp(-2 * ((a - b) ** 2).sum()) for a, b in pairs]))
    assert uniformity(x, block) == pytest.approx(expected, abs=1e-9)


def test_nearest_neighbours_are_those_of_a_loop():
    rng = np.random.default_rng(2)
    train, test = unit(rng, 200, 6), unit(rng, 70, 6)
    labels = rng.integers(0, 2, 200).astype(float)
    expected = [labels[np.argsort([-float(t @ x) for x in train])[:7]].mean() for t in test]
    assert nearest_neighbours(train, labels, test, 7) == pytest.approx(expected)
    with pytest.raises(UserError, match="201 neighbours cannot be taken from 200"):
        nearest_neighbours(train, labels, test, 201)


@settings(max_examples=25)
@given(st.integers(0, 1000), st.floats(0.001, 1.0))
def test_few_labels_keep_patients_whole_nested_and_both_values(seed, share):
    rng = np.random.default_rng(seed)
    patients = rng.integers(0, 30, 80).astype(str).tolist()
    labels = (rng.random(80) < 0.1).astype(float)
    labels[:2] = 0.0, 1.0
    rows = few_labels(labels, patients, share, np.random.default_rng(seed))
    assert set(labels[rows]) == {0.0, 1.0}
    chosen = {patients[row] for row in rows}
    assert set(rows.tolist()) == {n for n, name in enumerate(patients) if name in chosen}
    more = few_labels(labels, patients, min(1.0, share * 2), np.random.default_rng(seed))
    assert set(rows.tolist()) <= set(more.tolist())
    assert len(few_labels(labels, patients, 1.0, np.random.default_rng(seed))) == 80


def test_linear_probe_finds_a_linear_label_and_nothing_in_noise():
    rng = np.random.default_rng(3)
    x, w = rng.normal(size=(600, 8)), rng.normal(size=8)
    y = (x @ w > 0).astype(float)
    scores = linear_probe(x[:400], y[:400], x[400:])
    people = [str(n) for n in range(200)]
    found = auc_with_interval(scores, y[400:], people, Draw(200))
    assert found["auc"] > 0.98
    shuffled = rng.permutation(y)
    scores = linear_probe(x[:400], shuffled[:400], x[400:])
    found = auc_with_interval(scores, shuffled[400:], people, Draw(200))
    low, high = found["interval"]
    assert low < 0.5 < high


# ------------------------------------------------------------ detection of false negatives


def test_detection_counts_pairs():
    negatives = np.array([[0, 1, 1, 1], [1, 0, 1, 1]], dtype=bool)
    false = np.array([[1, 1, 0, 0], [1, 1, 1, 0]], dtype=bool)
    removed = np.array([[1, 1, 1, 0], [0, 1, 1, 0]], dtype=bool)
    found = detection(removed, false, negatives)
    assert found == {"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "removed": 0.5}
    nothing = detection(removed & False, false & False, negatives)
    assert nothing == {"precision": None, "recall": None, "f1": None, "removed": 0.0}


@pytest.mark.parametrize("alpha", [0.01, 0.5])
def test_most_similar_removes_what_the_policy_removes(alpha):
    rng = np.random.default_rng(0)
    similarity = rng.uniform(-1, 1, (12, 12))
    batch = ContrastiveBatch(torch.from_numpy(similarity), torch.tensor(1.0).double())
    anchors = batch.anchors("text_to_image")[0]
    policy = FalseNegativeCancellation(FNCSettings(alpha=alpha, keep_mass=False))
    weights = policy(anchors, batch).numpy()
    negatives = anchors.negatives.numpy()
    removed = most_similar(similarity.T, negatives, alpha)
    assert np.array_equal(removed, (weights == 0) & negatives)


def test_perfect_scores_rank_perfectly_and_random_ones_do_not():
    rng = np.random.default_rng(1)
    agree = rng.random((40, 60)) < 0.3
    negatives = rng.random((40, 60)) < 0.95
    none = np.zeros_like(agree)
    best = detectors(agree.astype(float), agree, negatives, none, none, (0.1,))
    assert best["similarity"] == {"average_precision": 1.0, "auc": 1.0}
    assert best["most similar 0.1"]["precision"] == 1.0
    assert best["shared label"] == best["same text"]
    chance = detectors(rng.random(agree.shape), agree, negatives, none, none, (0.1,))
    assert chance["similarity"]["auc"] == pytest.approx(0.5, abs=0.05)
    assert chance["false_rate"] == pytest.approx(agree[negatives].mean())
