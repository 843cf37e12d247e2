"""Thresholds and net benefit against every candidate by plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias.evaluation.decisions.thresholds import net_benefit, thresholds

Side = st.lists(st.integers(-4, 4).map(lambda n: n / 4), min_size=1, max_size=9)


@settings(max_examples=60, deadline=None)
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
