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
    first_relevant_rank,
)


def test_the_thresholds_are_the_41_of_the_paper():
    assert THRESHOLDS.tolist() == [k / 20 for k in range(-20, 21)]
    assert MIDDLE_THRESHOLDS.tolist() == [0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5]


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
