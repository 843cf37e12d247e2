"""Detection of false negatives: counted by hand, and against the objective's own policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medclip_debias.evaluation.representations import (
    detection,
    detectors,
    most_similar,
)


def test_detection_counts_pairs():
    negatives = np.array([[0, 1, 1, 1], [1, 0, 1, 1]], dtype=bool)
    false = np.array([[1, 1, 0, 0], [1, 1, 1, 0]], dtype=bool)
    removed = np.array([[1, 1, 1, 0], [0, 1, 1, 0]], dtype=bool)
    found = detection(removed, false, negatives)
    assert found == {"precision": 2 / 3, "recall": 2 / 3, "f1": 2 / 3, "removed": 0.5}


def test_detection_of_nothing_has_no_precision():
    none = np.zeros((2, 2), dtype=bool)
    found = detection(none, none, ~none)
    assert found == {"precision": None, "recall": None, "f1": None, "removed": 0.0}


@pytest.mark.parametrize("alpha", [0.0, 0.01, 0.2, 0.5])
def test_most_similar_removes_what_the_policy_removes(alpha):
    from medclip_debias.losses import ContrastiveBatch
    from medclip_debias.losses.policies.fnc import FalseNegativeCancellation, FNCSettings

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
    best = detectors(agree.astype(float), agree, negatives, None, none, (0.1,))
    assert best["similarity"] == {"average_precision": 1.0, "auc": 1.0}
    assert best["most similar 0.1"]["precision"] == 1.0
    assert "shared label" not in best
    chance = detectors(rng.random(agree.shape), agree, negatives, None, none, (0.1,))
    assert chance["similarity"]["auc"] == pytest.approx(0.5, abs=0.05)
    assert chance["false_rate"] == pytest.approx(agree[negatives].mean())
