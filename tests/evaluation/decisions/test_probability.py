"""Fits, their quality and shifts of prevalence, against scikit-learn, Bayes and limits."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from medclip_debias.errors import UserError
from medclip_debias.evaluation.decisions.calibration import shares
from medclip_debias.evaluation.decisions.probability import (
    Sets,
    Unfit,
    class_conditional,
    equal_mass_bin,
    estimated_prevalence,
    fit,
    marginal,
    net_benefit,
    platt,
    qualities,
    recalibration,
    shifted,
    thresholds,
)
from medclip_debias.evaluation.metrics import sigmoid


def sample(n=400, seed=0, gap=1.0, share=0.4):
    rng = np.random.default_rng(seed)
    positive = rng.random(n) < share
    return rng.normal(size=n) * 0.1 + 0.1 * gap * positive + 0.3, positive


@pytest.mark.parametrize(("constant", "balanced"), [(True, False), (True, True), (False, False)])
def test_platt_and_a_temperature_are_weighted_logistic_regressions_on_his_targets(
    constant, balanced
):
    scores, positive = sample(gap=1 if constant else 3)
    scores -= 0 if constant else 0.45
    yes, no = int(positive.sum()), int((~positive).sum())
    share = np.where(positive, (yes + 1) / (yes + 2), 1 / (no + 2))
    each = np.where(positive, 0.5 / yes, 0.5 / no) if balanced else 1.0
    model = LogisticRegression(C=1e14, tol=1e-12, max_iter=10_000, fit_intercept=constant)
    twice, labels = np.concatenate([scores, scores])[:, None], np.repeat([1, 0], len(scores))
    model.fit(twice, labels, sample_weight=np.concatenate([each * share, each * (1 - share)]))
    expected = model.coef_[0, 0], np.sum(model.intercept_)
    assert platt(scores, positive, constant=constant, balanced=balanced) == pytest.approx(
        expected, rel=1e-3
    )
    if not balanced:
        found = fit("platt" if constant else "temperature", scores, positive)
        assert (found.slope, found.intercept) == pytest.approx(expected, rel=1e-3)


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=3, max_size=14))
def test_isotonic_steps_are_the_min_max_of_means_even_with_ties(rows):
    """Barlow's formula: max over lower ends of the min over upper ends of the mean between."""
    scores = np.array([float(score) for score, _ in rows])
    positive = np.array([label for _, label in rows])
    try:
        found = fit("isotonic", scores, positive)
    except Unfit:
        return
    distinct = np.unique(scores)
    edge = 1 / (len(rows) + 2)
    for place, score in enumerate(distinct):
        best = max(
            min(positive[(scores >= low) & (scores <= high)].mean() for high in distinct[place:])
            for low in distinct[: place + 1]
        )
        expected = min(max(best, edge), 1 - edge)
        assert sigmoid(found.logits(np.array([score])))[0] == pytest.approx(expected, abs=1e-9)


def test_separable_scores_and_a_single_positive_have_finite_probabilities():
    scores = np.arange(40) / 40
    for method, count in itertools.product(("platt", "temperature", "isotonic"), (1, 20)):
        positive = np.arange(40) >= 40 - count
        shifted = scores - scores[40 - count] + 0.01
        logits = fit(method, shifted, positive).logits(shifted)
        assert np.isfinite(logits).all()
        assert (np.diff(logits) >= 0).all()
        assert logits[-1] > logits[0]
    apart = np.array([0.0, 0.0, 1.0, 1.0])
    assert 0 < platt(apart, apart == 1, balanced=True)[0] < 50


@pytest.mark.parametrize("method", ["platt", "isotonic"])
def test_scores_that_do_not_rise_with_the_finding_allow_no_fit(method):
    with pytest.raises(Unfit, match="do not rise with the finding"):
        fit(method, -np.arange(60.0) - 1, np.arange(60) > 30)
    with pytest.raises(UserError, match="1 of 60 scores are not finite"):
        fit(method, np.r_[np.nan, np.arange(59.0)], np.arange(60) > 30)


# ------------------------------------------------------------ quality of probabilities


RNG = np.random.default_rng(4)
LOGITS = RNG.normal(-1, 1.5, 3000)
RIGHT = RNG.random(3000) < sigmoid(LOGITS)
ONE = np.ones((1, 3000))


def test_intercept_and_slope_are_the_regressions():
    model = LogisticRegression(C=1e14, tol=1e-12, max_iter=10_000)
    model.fit(LOGITS[:, None], RIGHT)
    intercept, slope = recalibration(RIGHT, LOGITS, ONE)
    assert slope[0] == pytest.approx(model.coef_[0, 0], rel=1e-4)
    # The intercept with slope 1 is where the mean probability is the share of positives.
    assert sigmoid(LOGITS + intercept[0]).mean() == pytest.approx(RIGHT.mean(), abs=1e-8)
    brier = qualities(RIGHT, LOGITS, ONE)["brier"][0]
    assert brier == pytest.approx(np.mean((sigmoid(LOGITS) - RIGHT) ** 2), abs=1e-12)
    few, ones = LOGITS[:30], np.ones((1, 30))
    assert np.isnan(np.array(recalibration(np.zeros(30, bool), few, ones))).all()
    assert np.isnan(recalibration(few > np.median(few), few, ones)[1][0])  # no finite slope


def test_weights_are_repetitions_in_every_quality():
    weights = RNG.integers(0, 3, (2, 200)).astype(float)
    y, x = RIGHT[:200], LOGITS[:200]
    found = qualities(y, x, weights)
    for number, row in enumerate(weights):
        rows = np.repeat(np.arange(200), row.astype(int))
        again = qualities(y[rows], x[rows], np.ones((1, len(rows))))
        for name in set(found) - {"ece_equal_mass"}:  # whose bins are the unweighted images'
            assert found[name][number] == pytest.approx(again[name][0], abs=1e-7), name


def test_equal_mass_bins_hold_as_many_and_keep_ties_together():
    assert set(np.bincount(equal_mass_bin(np.arange(300) / 300)).tolist()) == {20}
    tied = np.repeat([0.1, 0.7], 50)
    assert len(set(equal_mass_bin(tied))) == 2
    assert set(equal_mass_bin(np.full(9, 0.3))) <= set(range(15))


# ------------------------------------------------------------ another prevalence


def normal_logits(n, share, seed, gap=2.0, at=0.4):
    """Exact log-odds at the prevalence ``at`` of scores N(+-gap/2, 1), ``share`` positive."""
    rng = np.random.default_rng(seed)
    positive = rng.random(n) < share
    scores = rng.normal(size=n) + gap * (positive - 0.5)
    return gap * scores + np.log(at / (1 - at)), positive


def test_shifted_odds_are_bayes_rule():
    from scipy.stats import norm

    x = np.linspace(-3, 3, 13)

    def posterior(share):
        yes, no = share * norm.pdf(x, 1), (1 - share) * norm.pdf(x, -1)
        return yes / (yes + no)

    logits = np.log(posterior(0.4)) - np.log1p(-posterior(0.4))
    assert sigmoid(shifted(logits, 0.4, 0.05)) == pytest.approx(posterior(0.05), abs=1e-12)
    assert shifted(logits, 0.4, 0.4) == pytest.approx(logits)


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
def test_the_estimate_is_the_likeliest_share(share):
    logits, positive = normal_logits(1000, share, seed=int(100 * share))
    found = estimated_prevalence(logits, 0.4)
    p = sigmoid(logits)
    grid = found + np.linspace(-0.02, 0.02, 401)
    likelihood = [np.log(t * p / 0.4 + (1 - t) * (1 - p) / 0.6).sum() for t in grid]
    assert found == pytest.approx(grid[int(np.argmax(likelihood))], abs=1e-4)
    assert found == pytest.approx(positive.mean(), abs=0.04)


def test_a_share_of_none_or_all_is_refused_and_no_estimate_is_made_up():
    for share in (0.0, 1.0):
        with pytest.raises(UserError, match="strictly between 0 and 1"):
            shifted(np.zeros(2), 0.4, share)
    with pytest.raises(Unfit, match=r"these 50 images: the likeliest is 0"):
        estimated_prevalence(np.full(50, -4.0), 0.4)
    with pytest.raises(Unfit, match=r"likeliest is 1"):
        estimated_prevalence(np.full(50, 4.0), 0.4)


# ------------------------------------------------------------------- thresholds and sets of answers


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
    """Exact log-odds of two normals, calibrated at 0.4, used at 0.05: mean over 150 replicates."""
    rng = np.random.default_rng(0)
    gap, found = 1.5, {"class": [], "weighted": [], "plain": []}
    for _ in range(150):
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


def test_a_prevalence_is_given_once_a_class():
    assert shares(["Edema=.1", "Mass=0.2"]) == {"Edema": 0.1, "Mass": 0.2}
    with pytest.raises(UserError, match="'Edema' is given twice"):
        shares(["Edema=.1", "Mass=.2", "Edema=.3"])
