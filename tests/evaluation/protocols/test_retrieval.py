"""Retrieval with known permutations, ties and identical sentences."""

from __future__ import annotations

import numpy as np
import pytest

from medclip_debias.evaluation.protocol import Draw
from medclip_debias.evaluation.protocols.retrieval import (
    chance,
    pair_rows,
    pair_scores,
    paired_ranks,
)

PATIENTS = [str(i) for i in range(200)]
TEXTS = [f"sentence {i}" for i in range(200)]


def retrieval(scores, texts, patients, draw):
    measured = pair_rows(paired_ranks(scores, texts), patients, draw)
    return {(row.metric, row.group): row for row in measured}


def test_a_known_permutation_has_known_ranks():
    """Box i scores sentence j by how far j is ahead of i: the pair sits at rank shift + 1."""
    shift = 30
    number = np.arange(200)
    scores = -((number[None, :] - number[:, None] + shift) % 200).astype(float)
    found = retrieval(scores, TEXTS, PATIENTS, draw=Draw(0))
    for way in ("strict, sentence to box", "strict, box to sentence"):
        assert found["recall_at_10", way].value == 0
        assert found["recall_at_50", way].value == 1
        assert found["median_rank", way].value == shift + 1
    assert found["recall", None].value == pytest.approx(4 / 6)
    assert found["recall", None].low is None


def test_random_and_equal_scores_sit_at_chance():
    n = 200
    found = retrieval(np.zeros((n, n)), TEXTS, PATIENTS, draw=Draw(0))
    assert found["median_rank", None].value == chance(n)["median_rank"] == (n + 1) / 2
    assert chance(n)["recall"] == pytest.approx((10 + 50 + 100) / 3 / n)
    scores = np.random.default_rng(0).normal(size=(n, n))
    recall = retrieval(scores, TEXTS, PATIENTS, draw=Draw(0))["recall", None].value
    assert recall == pytest.approx((10 + 50 + 100) / 3 / n, abs=0.06)


def test_identical_sentences_strict_and_lenient_against_a_loop():
    rng = np.random.default_rng(1)
    n, dim = 40, 5
    sentence_of = rng.integers(0, 12, n)
    vectors = rng.normal(size=(12, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    boxes = rng.normal(size=(n, dim)).astype(np.float32)
    scores = pair_scores(boxes, vectors, sentence_of)
    texts = [f"s{i}" for i in sentence_of]
    result = retrieval(scores, texts, PATIENTS[:n], draw=Draw(0))

    def by_loop(way, lenient):
        ranks = []
        for q in range(n):
            row = scores[:, q] if way == "sentence_to_box" else scores[q]
            good = [c for c in range(n) if (texts[c] == texts[q] if lenient else c == q)]
            best = max(row[c] for c in good)
            above = sum(row[c] > best for c in range(n) if c not in good)
            tied = sum(row[c] == best for c in range(n) if c not in good)
            ranks.append(1 + above + tied / (1 + sum(row[c] == best for c in good)))
        return np.array(ranks)

    for mode, lenient in (("strict", False), ("lenient", True)):
        for way in ("sentence_to_box", "box_to_sentence"):
            ranks = by_loop(way, lenient)
            group = f"{mode}, {way.replace('_', ' ')}"
            assert result["median_rank", group].value == np.median(ranks)
            recall = result["recall_at_10", group].value
            assert recall == pytest.approx((ranks <= 10).mean())
    assert result["recall", "lenient"].value > result["recall", None].value
