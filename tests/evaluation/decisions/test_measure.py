"""Decisions on evaluated images: the figures by hand, and the goal after a shift of prevalence."""

from __future__ import annotations

import numpy as np
import pytest

from medclip_debias.evaluation.catalogue import METRICS
from medclip_debias.evaluation.decisions.calibration import fit_classes
from medclip_debias.evaluation.decisions.measure import Decider, decisions
from medclip_debias.evaluation.decisions.options import DecisionOptions
from medclip_debias.evaluation.protocol import Draw


def images(n, share, seed):
    """Scores and labels of exactly ``share`` positives."""
    rng = np.random.default_rng(seed)
    truth = (np.arange(n) < round(n * share)).astype(float)
    return 0.1 * rng.normal(size=n) + 0.25 * truth - 0.3, truth


HERE, THERE = images(3000, 0.4, 0), images(4000, 0.05, 1)
PATIENTS = [str(number // 2) for number in range(4000)]


def decided(resamples=0, **options):
    fitted, _ = fit_classes("platt", {"X": HERE[0]}, {"X": HERE[1]})
    given = ({"X": THERE[0]}, {"X": THERE[1]}, PATIENTS, fitted)
    return decisions(*given, DecisionOptions(**options), scale=5.0, draw=Draw(resamples))


def test_after_a_shift_from_40_to_5_percent_probabilities_and_coverage_hold():
    for prevalence in ({"X": 0.05}, "estimated"):
        found = decided(prevalence=prevalence)
        own = found["classes"]["X"]
        assert own["prevalence"]["target"] == pytest.approx(0.05, abs=0.01)
        assert found["ece"] <= 0.02 < 0.05 < own["validation"]["ece"] < own["uncalibrated"]["ece"]
        assert found["coverage"] == pytest.approx(0.9, abs=0.015)
        assert own["probabilities"]["slope"] == pytest.approx(1, abs=0.15)


def test_means_have_intervals_over_patients_and_are_in_the_catalogue():
    fitted, _ = fit_classes("platt", {"X": HERE[0]}, {"X": HERE[1]})
    rows = np.r_[0:60, 3400:3940]
    given = ({"X": THERE[0][rows]}, {"X": THERE[1][rows]}, [PATIENTS[row] for row in rows], fitted)
    found = decisions(*given, DecisionOptions(), draw=Draw(50))
    for name, interval in found["interval"].items():
        assert interval[0] <= found[name] <= interval[1]
    assert {f"decisions_{name}" for name in found["interval"]} == {
        metric.name for metric in METRICS if metric.name.startswith("decisions_")
    }


def test_the_figures_are_counts_over_counts():
    found = decided(prevalence={"X": 0.05}, coverage=0.8)["classes"]["X"]
    scores, positive = THERE[0], THERE[1] == 1
    for rule, own in found["thresholds"].items():
        flagged = scores >= own["score"]
        assert own["sensitivity"] == pytest.approx(flagged[positive].mean()), rule
        assert own["specificity"] == pytest.approx((~flagged[~positive]).mean())
        assert own["ppv"] == pytest.approx(positive[flagged].mean())
        assert own["npv"] == pytest.approx((~positive[~flagged]).mean())
    assert found["thresholds"]["sensitivity"]["sensitivity"] == pytest.approx(0.95, abs=0.03)
    sets = found["sets"]
    present, absent = scores >= sets["present_from"], scores <= sets["absent_to"]
    assert sets["coverage"] == pytest.approx(np.where(positive, present, absent).mean())
    assert sets["abstention"] == pytest.approx((present == absent).mean())
    assert sets["coverage_present"] == pytest.approx(0.8, abs=0.06)
    curve = {row["threshold_probability"]: row for row in found["net_benefit"]}
    assert curve[0.05]["all"] == pytest.approx(0, abs=1e-12)
    assert curve[0.1]["model"] > max(0, curve[0.1]["all"])


def test_classes_that_are_not_measured_say_why():
    decider = Decider(DecisionOptions(prevalence="estimated"))
    differences = {name: THERE[0] for name in ("X", "Rare", "Alike", "Odd")}
    differences["Odd"] = THERE[0] - 5.0
    labels = {name: HERE[1] for name in ("X", "Alike", "Odd")} | {"Rare": np.zeros(3000)}
    there = {name: HERE[0] for name in labels} | {"Alike": np.zeros(3000)}
    more = {"scale": None, "draw": Draw(0)}
    truth = dict.fromkeys(differences, THERE[1])
    found = decider.decide(differences, truth, PATIENTS, (there, labels), **more)
    assert list(found["classes"]) == ["X"]
    reasons = {name: why["reason"] for name, why in found["skipped"].items()}
    assert "one label value only" in reasons["Rare"]
    assert found["skipped"]["Rare"]["negative"] == 3000
    assert "all scores are equal" in reasons["Alike"]
    assert "no prevalence can be estimated" in reasons["Odd"]
    none = decider.decide(differences, truth, PATIENTS, "no labels there", **more)
    assert none == {"method": "platt", "reason": "no images to calibrate on: no labels there"}
