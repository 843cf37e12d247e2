"""Whole-study retrieval against loops, with known permutations, duplicates and ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.protocol import Draw, Skipped
from medclip_debias.evaluation.protocols.retrieval import target_ranks
from medclip_debias.evaluation.protocols.study_retrieval import (
    StudyRetrieval,
    class_precision,
    report_scores,
)

PATIENTS = [f"p{i}" for i in range(400)]


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


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**16), st.integers(2, 12), st.integers(2, 12), st.booleans())
def test_ranks_of_pairs_are_those_of_a_loop(seed, queries, candidates, ties):
    rng = np.random.default_rng(seed)
    scores = (
        rng.integers(0, 4, (queries, candidates)) / 3 if ties else rng.random((queries, candidates))
    )
    query, target = rng.integers(0, queries, 20), rng.integers(0, candidates, 20)
    expected = [
        1 + (scores[q] > scores[q, t]).sum() + ((scores[q] == scores[q, t]).sum() - 1) / 2
        for q, t in zip(query, target, strict=True)
    ]
    np.testing.assert_allclose(target_ranks(scores, query, target), expected)


def test_class_precision_is_that_of_a_loop():
    rng = np.random.default_rng(2)
    n = 130
    scores = rng.normal(size=(n, n))
    positive = rng.random((n, 3)) < 0.4
    for match_all in (True, False):
        found = class_precision(scores, positive, PATIENTS[:n], Draw(30, 0), match_all=match_all)
        shares = {5: [], 10: [], 100: []}
        for q in range(n):
            if not positive[q].any():
                continue
            order = [c for c in np.argsort(-scores[q]) if c != q]
            for k, values in shares.items():
                common = positive[order[:k]][:, positive[q]]
                values.append((common.all(axis=1) if match_all else common.any(axis=1)).mean())
        for k, values in shares.items():
            assert found[f"precision_at_{k}"] == pytest.approx(np.mean(values))
            low, high = found["interval"][f"precision_at_{k}"]
            assert low <= found[f"precision_at_{k}"] <= high
        assert found["queries"] + found["without_label"] == n


def test_equal_scores_give_the_precision_of_chance_and_small_sets_give_none():
    positive = np.array([[True], [True], [False], [True], [False], [False], [True]])
    found = class_precision(np.zeros((7, 7)), positive, PATIENTS[:7], Draw(0, 0))
    assert found["precision_at_5"] == pytest.approx(3 / 6) == found["chance"]
    assert found["precision_at_10"] is None
    assert found["interval"]["precision_at_10"] is None
    none = class_precision(np.zeros((7, 7)), ~positive & positive, PATIENTS[:7], Draw(5, 0))
    assert none["queries"] == 0
    assert none["precision_at_5"] is None


class Fixed:
    """A model whose score is a table: image number in, a row of scores out."""

    def __init__(self, table):
        import torch

        self.table = torch.from_numpy(table)

    def score(self, features, vectors):
        return self.table[features.regions[:, 0, 0].long()]


@pytest.fixture
def studies(write_prepared, tmp_path):
    return PreparedSet.open(write_prepared(tmp_path / "set"))


def run(data, table_of, options=None):
    import torch

    from medclip_debias.models.features import ImageFeatures

    protocol = StudyRetrieval(data, "test", options or EvaluationOptions())
    rows = sorted(protocol.rows)
    table = table_of(protocol)
    model = Fixed(table)
    protocol.begin(model, torch.zeros(len(protocol.texts), 1))
    order = torch.arange(len(rows))
    for part in (slice(5, None), slice(0, 5)):  # any order of batches
        protocol.see(rows[part], ImageFeatures(order[part].float()[:, None, None]))
    return protocol, protocol.measure(Draw(20, 0))


def test_studies_with_the_same_report_are_rivals_or_friends(studies):
    """12 test studies, 2 distinct one-sentence reports: a perfect model knows the sentence only."""
    data = studies

    def perfect(protocol):
        table = np.zeros((12, 2), dtype=np.float32)
        for number, own in enumerate(protocol._reports):
            table[number, own] = 1
        return table

    protocol, found = run(data, perfect)
    results = found.details
    assert results["studies"] == 12
    assert results["distinct_sentences"] == results["distinct_reports"] == 2
    sizes = np.bincount([own[0] for own in protocol._reports])
    expected = np.mean([(sizes[own[0]] + 1) / 2 for own in protocol._reports])
    for way in ("report_to_image", "image_to_report"):
        column = {"report_to_image": "text_to_image", "image_to_report": "image_to_text"}[way]
        ranks = found.items[f"rank_{column}_strict"]
        assert ranks.mean() == pytest.approx(expected)
        words = way.replace("_", " ")
        assert found.value("median_rank", group=f"lenient, {words}") == 1
        assert found.row("recall_at_1", group=f"strict, {words}").n == 12
    assert results["pairs"] == 12
    assert found.value("median_rank", group="strict, image to sentence") == 1
    sentences = [row for row in found.rows if row.group == "lenient, sentence to image"]
    names = {*(f"recall_at_{k}" for k in (1, 5, 10, 50, 100)), "median_rank"}
    assert {row.metric for row in sentences} == names
    assert {(row.value, row.n) for row in sentences} == {(1.0, 2)}
    assert found.value("precision_at_5") is not None
    assert list(found.items["id"]) == protocol.studies


def test_the_limit_takes_the_same_studies_every_time(studies):
    options = EvaluationOptions(most_studies=5)
    one, other = (StudyRetrieval(studies, "test", options) for _ in range(2))
    assert one.studies == other.studies
    assert len(one.studies) == 5
    assert one._left_out["studies_over_limit"] == 7
    with pytest.raises(Skipped, match="at least two studies of 'validate'"):
        StudyRetrieval(studies, "validate", options)
