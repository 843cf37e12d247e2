"""Retrieval against loops, with known permutations, duplicates, ties and identical sentences."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.evaluation.metrics import target_ranks
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.protocol import Draw, Request, Skipped
from medclip_debias.evaluation.protocols.retrieval import (
    BoxRetrieval,
    StudyRetrieval,
    chance,
    class_precision,
    pair_scores,
    paired_ways,
    report_scores,
)
from medclip_debias.models.features import ImageFeatures

PATIENTS = [str(i) for i in range(200)]
TEXTS = [f"sentence {i}" for i in range(200)]
WAYS = ("sentence to box", "box to sentence")


def retrieval(scores, texts=TEXTS):
    """The rows of box retrieval, by metric and group."""
    ways = paired_ways(scores, texts, PATIENTS[: len(texts)], WAYS)
    measured = object.__new__(BoxRetrieval).pair_rows(ways, Draw(0))
    return {(row.metric, row.group): row for row in measured}


def test_equal_scores_sit_at_chance():
    n = 200
    found = retrieval(np.zeros((n, n)))
    assert found["median_rank", None].value == found["median_rank", "chance"].value == (n + 1) / 2
    assert chance(n)["recall"] == pytest.approx((10 + 50 + 100) / 3 / n)


def test_identical_sentences_strict_and_lenient_against_a_loop():
    rng = np.random.default_rng(1)
    n, dim = 40, 5
    sentence_of = rng.integers(0, 12, n)
    vectors = rng.normal(size=(12, dim)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    boxes = rng.normal(size=(n, dim)).astype(np.float32)
    scores = pair_scores(boxes, vectors, sentence_of).round()  # with ties
    texts = [f"s{i}" for i in sentence_of]
    result = retrieval(scores, texts)

    def by_loop(way, lenient):
        ranks = []
        for q in range(n):
            row = scores[:, q] if way == WAYS[0] else scores[q]
            good = [c for c in range(n) if (texts[c] == texts[q] if lenient else c == q)]
            best = max(row[c] for c in good)
            above = sum(row[c] > best for c in range(n) if c not in good)
            tied = sum(row[c] == best for c in range(n) if c not in good)
            ranks.append(1 + above + tied / (1 + sum(row[c] == best for c in good)))
        return np.array(ranks)

    means = {}
    for mode in ("strict", "lenient"):
        for way in WAYS:
            ranks, group = by_loop(way, mode == "lenient"), f"{mode}, {way}"
            assert result["median_rank", group].value == np.median(ranks)
            shares = [(ranks <= k).mean() for k in (10, 50, 100)]
            assert result["recall_at_10", group].value == pytest.approx(shares[0])
            assert result["recall_at_50", group].value == pytest.approx(shares[1])
            means.setdefault(mode, []).append(np.mean(shares))
    assert result["recall", None].value == pytest.approx(np.mean(means["strict"]))
    assert result["recall", "lenient"].value == pytest.approx(np.mean(means["lenient"]))


# -------------------------------------------------------------------------- whole studies


def test_a_report_scores_as_the_mean_or_maximum_of_its_sentences():
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(600, 9)).astype(np.float32)  # more images than a block
    reports = [[0, 3], [8], [1, 2, 5], [0, 3]]
    mean = report_scores(scores, reports)
    largest = report_scores(scores, reports, "max")
    for column, own in enumerate(reports):
        np.testing.assert_allclose(mean[:, column], scores[:, own].astype(float).mean(axis=1))
        np.testing.assert_array_equal(largest[:, column], scores[:, own].max(axis=1))
    np.testing.assert_array_equal(mean[:, 0], mean[:, 3])  # equal reports, equal bits


@given(st.integers(0, 2**16), st.integers(2, 12), st.integers(2, 12), st.booleans())
def test_ranks_of_pairs_are_those_of_a_loop(seed, queries, candidates, ties):
    rng = np.random.default_rng(seed)
    scores = rng.random((queries, candidates))
    scores = np.floor(4 * scores) / 3 if ties else scores
    query, target = rng.integers(0, queries, 20), rng.integers(0, candidates, 20)
    expected = [
        1 + (scores[q] > scores[q, t]).sum() + ((scores[q] == scores[q, t]).sum() - 1) / 2
        for q, t in zip(query, target, strict=True)
    ]
    np.testing.assert_allclose(target_ranks(scores, query, target), expected)


@pytest.mark.parametrize("match_all", [True, False])
def test_class_precision_is_that_of_a_loop(match_all):
    rng = np.random.default_rng(2)
    n = 130
    scores, positive = rng.normal(size=(n, n)), rng.random((n, 3)) < 0.4
    queries, found, _ = class_precision(scores, positive, match_all=match_all)
    assert queries.tolist() == np.flatnonzero(positive.any(axis=1)).tolist()
    shares = {5: [], 10: [], 100: []}
    for q in queries:
        order = [c for c in np.argsort(-scores[q]) if c != q]
        for k, values in shares.items():
            common = positive[order[:k]][:, positive[q]]
            values.append((common.all(axis=1) if match_all else common.any(axis=1)).mean())
    for k, values in shares.items():
        np.testing.assert_allclose(found[f"precision_at_{k}"], values)


def test_equal_scores_give_the_precision_of_chance_and_small_sets_give_none():
    positive = np.array([[True], [True], [False], [True], [False], [False], [True]])
    _, found, base = class_precision(np.zeros((7, 7)), positive)
    assert list(found) == ["precision_at_5"]
    assert found["precision_at_5"].mean() == pytest.approx(3 / 6) == base.mean()
    queries, none, _ = class_precision(np.zeros((7, 7)), ~positive & positive)
    assert (queries.tolist(), none) == ([], {})


def planned(data, split="test", **options):
    return StudyRetrieval(Request(data, split, None, None, EvaluationOptions(**options)))


def test_studies_with_the_same_report_are_rivals_or_friends(small_prepared):
    """12 test studies, 2 distinct one-sentence reports: a perfect model knows the sentence only."""
    protocol = planned(small_prepared)
    rows, table = sorted(protocol.rows), np.zeros((12, 2), dtype=np.float32)
    reports = dict(zip(protocol.studies, protocol._reports, strict=True))
    for number, own in enumerate(reports.values()):
        table[number, own] = 1
    scores = torch.from_numpy(table)  # of a model: image number in, a row of scores out
    model = SimpleNamespace(score=lambda features, _: scores[features.regions[:, 0, 0].long()])
    protocol.begin(model, torch.zeros(len(protocol.texts), 1))
    order = torch.arange(len(rows)).float()[:, None, None]
    for part in (slice(5, None), slice(0, 5)):  # any order of batches
        protocol.see(rows[part], ImageFeatures(order[part]))
    found = protocol.measure(Draw(20, 0))
    assert found.details["studies"] == found.details["pairs"] == 12
    assert found.details["distinct_sentences"] == found.details["distinct_reports"] == 2
    sizes = np.bincount([own[0] for own in reports.values()])
    expected = np.mean([(sizes[own[0]] + 1) / 2 for own in reports.values()])
    for way, column in (("report to image", "text_to_image"), ("image to report", "image_to_text")):
        assert found.items[f"rank_{column}_strict"].mean() == pytest.approx(expected)
        assert found.value("median_rank", group=f"lenient, {way}") == 1
        assert found.row("recall_at_1", group=f"strict, {way}").n == 12
    assert found.value("median_rank", group="strict, image to sentence") == 1
    assert found.row("recall", group="sentences, strict").n == 12  # pairs, each way
    assert found.row("recall", group="sentences, lenient").n is None  # 2 sentences, 12 studies
    sentences = [row for row in found.rows if row.group == "lenient, sentence to image"]
    assert {(row.value, row.n) for row in sentences} == {(1.0, 2)}
    assert list(found.items["id"]) == protocol.studies


def test_the_limit_takes_the_same_studies_every_time(small_prepared):
    one, other = (planned(small_prepared, most_studies=5) for _ in range(2))
    assert one.studies == other.studies
    assert len(one.studies) == 5
    assert one._left_out["studies_over_limit"] == 7
    with pytest.raises(Skipped, match="at least two studies of 'validate'"):
        planned(small_prepared, "validate")
