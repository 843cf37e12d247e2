"""Decisions on evaluated images: the figures by hand, and the goal after a shift of prevalence."""

from __future__ import annotations

import numpy as np
import pytest

from medclip_debias.evaluation.decisions.measure import decide
from medclip_debias.evaluation.options import DecisionOptions
from medclip_debias.evaluation.protocol import Draw


def images(n, share, seed):
    """Scores and labels of exactly ``share`` positives."""
    rng = np.random.default_rng(seed)
    truth = (np.arange(n) < round(n * share)).astype(float)
    return 0.1 * rng.normal(size=n) + 0.25 * truth - 0.3, truth


HERE, THERE = images(3000, 0.4, 0), images(4000, 0.05, 1)
PATIENTS = [str(number // 2) for number in range(4000)]


def decided(**options):
    """Calibrated here, decided there."""
    given = ({"X": THERE[0]}, {"X": THERE[1]}, PATIENTS, ({"X": HERE[0]}, {"X": HERE[1]}))
    return decide(DecisionOptions(**options), None, *given, scale=5.0, draw=Draw(0))


def test_after_a_shift_from_40_to_5_percent_probabilities_and_coverage_hold():
    for prevalence in ({"X": 0.05}, "estimated"):
        found = decided(prevalence=prevalence)
        prevalence = found.details["classes"]["X"]["prevalence"]
        assert prevalence["target"] == pytest.approx(0.05, abs=0.01)
        errors = [
            found.value("ece", "X", f"decisions, {s}") for s in ("validation", "uncalibrated")
        ]
        assert found.value("decisions_ece") <= 0.02 < 0.05 < errors[0] < errors[1]
        assert found.value("decisions_coverage") == pytest.approx(0.9, abs=0.015)
        slope = found.value("slope", "X", "decisions, probabilities")
        assert slope == pytest.approx(1, abs=0.15)


def test_the_figures_are_counts_over_counts():
    found = decided(prevalence={"X": 0.05}, coverage=0.8)
    own = found.details["classes"]["X"]
    scores, positive = THERE[0], THERE[1] == 1

    def value(metric, group):
        return found.value(metric, "X", f"decisions, {group}")

    for rule, threshold in own["thresholds"].items():
        flagged, group = scores >= threshold["score"], f"threshold {rule}"
        assert value("sensitivity", group) == pytest.approx(flagged[positive].mean()), rule
        assert value("specificity", group) == pytest.approx((~flagged[~positive]).mean())
        assert value("ppv", group) == pytest.approx(positive[flagged].mean())
        assert value("npv", group) == pytest.approx((~positive[~flagged]).mean())
    assert value("sensitivity", "threshold sensitivity") == pytest.approx(0.95, abs=0.03)
    sets = own["sets"]
    present, absent = scores >= sets["present_from"], scores <= sets["absent_to"]
    assert value("coverage", "sets") == pytest.approx(np.where(positive, present, absent).mean())
    assert value("abstention", "sets") == pytest.approx((present == absent).mean())
    assert value("coverage_present", "sets") == pytest.approx(0.8, abs=0.06)
    curve = {row["threshold_probability"]: row for row in own["net_benefit"]}
    assert curve[0.05]["all"] == pytest.approx(0, abs=1e-12)
    assert curve[0.1]["model"] > max(0, curve[0.1]["all"])


def test_classes_that_are_not_measured_say_why():
    options = DecisionOptions(prevalence="estimated")
    differences = {name: THERE[0] for name in ("X", "Rare", "Alike", "Odd")}
    differences["Odd"] = THERE[0] - 5.0
    labels = {name: HERE[1] for name in ("X", "Alike", "Odd")} | {"Rare": np.zeros(3000)}
    there = {name: HERE[0] for name in labels} | {"Alike": np.zeros(3000)}
    more = {"scale": None, "draw": Draw(0)}
    truth = dict.fromkeys(differences, THERE[1])
    given = differences, truth, PATIENTS, (there, labels)
    found = decide(options, None, *given, **more).details
    assert list(found["classes"]) == ["X"]
    reasons = {name: why["reason"] for name, why in found["skipped"].items()}
    assert "one label value only" in reasons["Rare"]
    assert found["skipped"]["Rare"]["negative"] == 3000
    assert "all scores are equal" in reasons["Alike"]
    assert "no prevalence can be estimated" in reasons["Odd"]
    none = decide(options, None, differences, truth, PATIENTS, "no labels there", **more)
    assert none.rows == []
    assert none.details == {
        "method": "platt",
        "reason": "no images to calibrate on: no labels there",
    }
