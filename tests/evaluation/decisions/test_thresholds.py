"""Thresholds and sets of answers against all candidates and exact p-values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.evaluation.decisions.probability import (
    Sets,
    class_conditional,
    marginal,
    net_benefit,
    thresholds,
)

Side = st.lists(st.integers(-4, 4).map(lambda n: n / 4), min_size=1, max_size=9)


@given(Side, Side, st.sampled_from([0.5, 0.9, 1.0]), st.sampled_from([0.05, 0.4]))
def test_each_rule_takes_the_best_of_all_scores(positive, negative, level, prevalence):
    rules = thresholds(
        np.array(positive),
        np.array(negative),
        sensitivity=level,
        specificity=level,
        threshold_probability=0.2,
        prevalence=prevalence,
    )
    every = sorted({*positive, *negative})
    every.append(np.nextafter(every[-1], np.inf))

    def sensitivity(t):
        return sum(score >= t for score in positive) / len(positive)

    def specificity(t):
        return sum(score < t for score in negative) / len(negative)

    def benefit(t):
        false = (1 - prevalence) * (1 - specificity(t))
        return prevalence * sensitivity(t) - false * 0.25

    assert rules["sensitivity"] == max(t for t in every if sensitivity(t) >= level - 1e-12)
    assert rules["specificity"] == min(t for t in every if specificity(t) >= level - 1e-12)
    youden = {t: sensitivity(t) + specificity(t) for t in every}
    for rule, values in (("youden", youden), ("net_benefit", {t: benefit(t) for t in every})):
        best = max(values.values())
        assert rules[rule] == max(t for t in every if values[t] >= best - 1e-9)


def test_net_benefit_is_vickers_and_elkins():
    positive = np.array([True, True, False, False, False])
    flagged = np.array([True, False, True, False, False])
    ones = np.ones((1, 5))
    assert net_benefit(positive, flagged, ones, 0.2)[0] == pytest.approx(1 / 5 - 1 / 5 / 4)
    assert net_benefit(positive, np.zeros(5, bool), ones, 0.2)[0] == 0
    share = positive.mean()  # acting on all is worth nothing at the prevalence
    assert net_benefit(positive, np.ones(5, bool), ones, share)[0] == pytest.approx(0)


# ------------------------------------------------------------ sets of answers


Scores = st.lists(st.integers(-5, 5).map(float), min_size=1, max_size=14)


def weighted_p(misfits, weights, own, own_weight):
    """Weighted p-value of one answer: weight of calibration images that fit no better, and own."""
    worse = sum(w for m, w in zip(misfits, weights, strict=True) if m >= own)
    return (worse + own_weight) / (sum(weights) + own_weight)


@given(Scores, Scores, st.sampled_from([0.5, 0.8, 0.9]), st.sampled_from([None, 0.05, 0.6]))
def test_an_answer_is_in_the_set_unless_its_p_value_is_at_most_what_may_be_missed(
    positive, negative, coverage, target
):
    up, down = np.array(positive), np.array(negative)
    share = len(up) / (len(up) + len(down))
    if target is None:
        sets = class_conditional(up, down, coverage)
    else:
        sets = marginal(up, down, coverage, target)
    for value in np.arange(-6, 6.5, 0.5):
        present, absent = (bool(each) for each in sets.of(np.array(value)))
        if target is None:
            p = [
                weighted_p(side, np.ones(len(side)), own, 1.0)
                for side, own in ((-up, -value), (down, value))
            ]
        else:
            ratio = (target / share, (1 - target) / (1 - share))
            misfits = [*(-up), *down]
            weights = [ratio[0]] * len(up) + [ratio[1]] * len(down)
            p = [
                weighted_p(misfits, weights, own, w)
                for own, w in ((-value, ratio[0]), (value, ratio[1]))
            ]
        for inside, value_of_p in zip((present, absent), p, strict=True):
            if not math.isclose(value_of_p, 1 - coverage, abs_tol=1e-9):
                assert inside == (value_of_p > 1 - coverage)


def test_coverage_holds_after_a_shift_of_prevalence_and_not_without_weights():
    """Exact log-odds of two normals, calibrated at 0.4, used at 0.05: mean over 300 replicates."""
    rng = np.random.default_rng(0)
    gap, found = 1.5, {"class": [], "weighted": [], "plain": []}
    for _ in range(300):
        up, down = rng.normal(gap / 2, 1, 160) * gap, rng.normal(-gap / 2, 1, 240) * gap
        new_up, new_down = rng.normal(gap / 2, 1, 20) * gap, rng.normal(-gap / 2, 1, 380) * gap
        for name, sets in (
            ("class", class_conditional(up, down, 0.9)),
            ("weighted", marginal(up - 2.5, down - 2.5, 0.9, 0.05)),
            ("plain", marginal(up - 1.5, down - 1.5, 0.9, 0.4)),
        ):
            move = {"class": 0.0, "weighted": 2.5, "plain": 1.5}[name]
            covered = [sets.of(new_up - move)[0], sets.of(new_down - move)[1]]
            found[name].append((np.concatenate(covered).mean(), covered[0].mean()))
    means = {name: np.mean(values, axis=0) for name, values in found.items()}
    assert means["class"] == pytest.approx([0.9, 0.9], abs=0.012)
    assert means["weighted"][0] == pytest.approx(0.9, abs=0.012)
    assert abs(means["plain"][0] - 0.9) > 0.012


def test_few_images_of_a_truth_leave_its_answer_in_every_set():
    sets = class_conditional(np.arange(8.0), np.arange(-40.0, 0.0), 0.9)
    assert sets.present_from == -math.inf
    assert math.isfinite(sets.absent_to)
    assert list(Sets(0.5, 0.2).words(np.array([0.1, 0.3, 0.6]))) == ["absent", "none", "present"]
    assert list(Sets(0.2, 0.5).words(np.array([0.3]))) == ["both"]
