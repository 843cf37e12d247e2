"""Average precision, F1, calibration and multi-class answers against scikit-learn and loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.calibration import calibration_curve
from sklearn.metrics import average_precision_score, f1_score, precision_recall_curve

from medclip_debias.evaluation.metrics import (
    average_precision,
    best_threshold,
    reliability,
    sigmoid,
    weighted_average_precision,
    weighted_ece,
    weighted_f1,
)
from medclip_debias.evaluation.protocol import Draw, Skipped
from medclip_debias.evaluation.zero_shot import (
    exclusive_classes,
    multiclass_accuracy,
)
from tests.evaluation.conftest import by_name, judged

NAN = float("nan")


def named_accuracy(*given):
    return by_name(multiclass_accuracy(*given))


@st.composite
def labelled_scores(draw):
    """Scores with many ties, and labels of both kinds."""
    n = draw(st.integers(2, 40))
    labels = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    labels[0], labels[1] = True, False
    scores = draw(st.lists(st.integers(-4, 4).map(lambda k: k / 4), min_size=n, max_size=n))
    return np.array(labels), np.array(scores, dtype=float)


@settings(max_examples=60, deadline=None)
@given(labelled_scores())
def test_average_precision_and_best_f1_are_scikit_learns(case):
    labels, scores = case
    assert average_precision(labels, scores) == pytest.approx(
        average_precision_score(labels, scores)
    )
    precision, recall, _ = precision_recall_curve(labels, scores)
    with np.errstate(invalid="ignore"):
        highest = np.nanmax(2 * precision * recall / (precision + recall))
    threshold, f1 = best_threshold(labels, scores)
    assert f1 == pytest.approx(highest)
    assert f1_score(labels, scores >= threshold) == pytest.approx(f1)
    better = {t for t in scores if t > threshold}
    assert all(f1_score(labels, scores >= t, zero_division=0) < f1 for t in better)


def test_weights_are_repetitions():
    rng = np.random.default_rng(0)
    labels, scores = rng.random(30) > 0.6, rng.integers(0, 6, 30) / 5
    weights = rng.integers(0, 3, (4, 30)).astype(float)
    probability = sigmoid(scores)
    found = (
        weighted_average_precision(labels, scores, weights),
        weighted_f1(labels, scores >= 0.4, weights),
        weighted_ece(labels, probability, weights),
    )
    for row, (ap, f1, ece) in zip(weights, zip(*found, strict=True), strict=True):
        again = np.repeat(np.arange(30), row.astype(int))
        assert ap == pytest.approx(average_precision_score(labels[again], scores[again]))
        assert f1 == pytest.approx(f1_score(labels[again], scores[again] >= 0.4))
        one = weighted_ece(labels[again], probability[again], np.ones((1, len(again))))
        assert ece == pytest.approx(one[0])
    assert np.isnan(weighted_average_precision(np.zeros(3, bool), scores[:3], np.ones((1, 3)))[0])


def test_calibration_is_the_mean_gap_of_15_bins():
    rng = np.random.default_rng(1)
    probability = np.r_[rng.random(500), 0.0, 1.0]
    labels = rng.random(502) < probability**2
    shares, means = calibration_curve(labels, probability, n_bins=15, strategy="uniform")
    bins = reliability(labels, probability)
    assert [b["positive"] for b in bins] == pytest.approx(shares)
    assert [b["probability"] for b in bins] == pytest.approx(means)
    counts = np.array([b["images"] for b in bins])
    assert counts.sum() == 502
    expected = (counts * np.abs(shares - means)).sum() / 502
    assert weighted_ece(labels, probability, np.ones((1, 502)))[0] == pytest.approx(expected)
    assert sigmoid(np.array([-1e4, 0.0, 1e4])).tolist() == [0, 0.5, 1]


def test_f1_uses_a_threshold_chosen_elsewhere_or_says_why_not():
    truth = np.array([1.0, 1, 0, 0, -1])
    difference = np.array([0.5, 0.1, 0.2, -0.3, 0.0])
    there = ({"A": np.array([0.3, 0.15, 0.1, 9.0])}, {"A": np.array([1.0, 1, 0, NAN])})
    patients = list("abcde")
    found = judged({"A": difference}, {"A": truth}, patients, validation=there, draw=Draw(20))
    one = found["classes"]["A"]
    assert one["threshold"] == {
        **{"value": 0.15, "f1_there": 1.0, "images": 4, "positive": 2, "negative": 1},
        **{"uncertain": 0, "blank": 1},
    }
    assert one["f1"] == found["f1"] == f1_score(truth[:4], difference[:4] >= 0.15)
    assert one["average_precision"] == pytest.approx(
        average_precision_score(truth[:4], difference[:4])
    )
    none = judged({"A": difference}, {"A": truth}, patients, validation="no such split")
    assert "f1" not in none
    assert "f1" not in none["classes"]["A"]
    assert none["classes"]["A"]["threshold"] == {"reason": "no such split"}
    single = ({"A": np.ones(2)}, {"A": np.ones(2)})
    one = judged({"A": difference}, {"A": truth}, patients, validation=single)["classes"]["A"]
    assert "one label value only" in one["threshold"]["reason"]
    assert one["threshold"]["positive"] == 2


def test_the_scale_turns_differences_into_probabilities():
    truth, difference = np.array([1.0, 0, 1, 0]), np.array([0.2, 0.1, -0.1, -0.3])
    found = judged({"A": difference}, {"A": truth}, list("abcd"), scale=10.0)["classes"]["A"]
    probability = 1 / (1 + np.exp(-10 * difference))
    assert [b["probability"] for b in found["reliability"]] == pytest.approx(sorted(probability))
    assert found["ece"] == pytest.approx(np.abs(probability - truth).mean())


def test_only_images_with_exactly_one_class_take_part():
    labels = {
        "A": np.array([1.0, 1, 1, 0, NAN, 1]),
        "B": np.array([0.0, 1, -1, NAN, NAN, NAN]),
        "C": np.array([NAN, 0, 0, 0, 1, 0]),
    }
    assert exclusive_classes(labels, ["A", "B", "C"]).tolist() == [0, -1, -1, -1, 2, 0]


def test_multi_class_accuracy_counts_ties_by_their_share():
    scores = np.array([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0], [0.0, 0.2, 0.1], [0.3, 0.3, 0.3]])
    truth = np.array([0, 1, 0, 1])
    found = named_accuracy(scores, truth, ["A", "B", "C"], list("pqrs"), Draw(50, 0))
    assert found["multiclass_accuracy"] == pytest.approx((1 + 1 / 2 + 0 + 1 / 3) / 4)
    assert found["multiclass_balanced_accuracy"] == pytest.approx(
        ((1 + 0) / 2 + (1 / 2 + 1 / 3) / 2) / 2
    )
    assert found["classes"]["C"] == {"images": 0}
    np.testing.assert_allclose(np.sum(found["confusion"], axis=1), [2, 2, 0])
    low, high = found["interval"]["multiclass_accuracy"]
    assert low < found["multiclass_accuracy"] < high
    with pytest.raises(Skipped, match="2 of A, 0 of B"):
        named_accuracy(scores[:2], np.zeros(2, int), ["A", "B", "C"], list("pq"), Draw())


def test_a_model_without_scale_has_no_calibration():
    truth, difference = np.array([1.0, 0, 1, 0]), np.array([0.2, 0.1, -0.1, -0.3])
    found = judged({"A": difference}, {"A": truth}, list("abcd"), scale=None, draw=Draw(5))
    assert "ece" not in found
    assert found["classes"]["A"]["reliability"] == []
    assert found["mean_auc"] == 0.75
