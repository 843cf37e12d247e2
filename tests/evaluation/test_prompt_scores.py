"""Each side's AUC, and contradictions, against scikit-learn and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from medclip_debias.data.prompts import PromptSet
from medclip_debias.evaluation.protocol import Draw
from medclip_debias.evaluation.zero_shot import SideScores, class_statistics, zero_shot
from tests.evaluation.conftest import by_name

NAN = float("nan")


def named(*given, **options):
    return by_name(zero_shot(*given, **options))


SIDES = ("positive", "negative")


def sides_of(positive, negative):
    return SideScores(
        {name: np.asarray(values, dtype=float) for name, values in positive.items()},
        {name: np.asarray(values, dtype=float) for name, values in negative.items()},
    )


def contradicted_by_hand(scores, names):
    """For each image the class whose two sides are above all others, found by comparing all."""
    found = []
    for image in scores:
        hit = None
        for name in names:
            own = [image[name, "positive"], image[name, "negative"]]
            others = [value for (other, _), value in image.items() if other != name]
            if all(mine > theirs for mine in own for theirs in others):
                hit = name
        found.append(hit)
    return found


@given(
    st.integers(2, 4).flatmap(
        lambda classes: st.lists(
            st.lists(st.integers(-3, 3), min_size=2 * classes, max_size=2 * classes),
            min_size=1,
            max_size=8,
        )
    )
)
def test_contradictions_are_those_of_a_loop(table):
    scores = np.array(table, dtype=float)
    names = [f"c{n}" for n in range(scores.shape[1] // 2)]
    images = [
        {(n, side): row[2 * i + s] for i, n in enumerate(names) for s, side in enumerate(SIDES)}
        for row in scores
    ]
    found = sides_of(
        {n: scores[:, 2 * i] for i, n in enumerate(names)},
        {n: scores[:, 2 * i + 1] for i, n in enumerate(names)},
    ).contradictions
    expected = contradicted_by_hand(images, names)
    for name in names:
        assert found[name].tolist() == [hit == name for hit in expected]


def test_one_class_and_shared_prompts_have_no_chance_level():
    alone = sides_of({"A": [1.0, 2.0]}, {"A": [0.0, 3.0]})
    assert alone.contradictions == {}
    assert alone.chance is None
    prompts = PromptSet.model_validate(
        {
            "name": "shared",
            "classes": {
                "A": {"positive": ["a"], "negative": ["clear", "normal"]},
                "B": {"positive": ["b"], "negative": ["normal", "clear"]},
            },
        }
    )
    scores = np.random.default_rng(1).normal(size=(50, len(prompts.texts)))
    shared = SideScores.of(scores, prompts)
    assert shared.chance is None
    assert not any(found.any() for found in shared.contradictions.values())


@pytest.fixture(scope="module")
def judged():
    """Three classes, one without negatives; several images a patient, some without a label."""
    rng = np.random.default_rng(3)
    truth = {
        "A": rng.choice([0.0, 1.0, -1.0, NAN], 150, p=[0.4, 0.4, 0.1, 0.1]),
        "B": rng.choice([0.0, 1.0], 150),
        "C": np.ones(150),
    }
    score = {n: np.nan_to_num(v) for n, v in truth.items()}
    sides = sides_of(
        {n: np.round(v + rng.normal(size=150), 1) for n, v in score.items()},
        {n: np.round(0.3 * v + rng.normal(size=150), 1) for n, v in score.items()},
    )
    patients = [str(n // 3) for n in range(150)]
    found = named(sides, truth, patients, draw=Draw(100))
    return sides, truth, patients, found


def test_each_sides_auc_is_scikit_learns(judged):
    sides, truth, _, found = judged
    for name in "AB":
        known = (truth[name] == 0) | (truth[name] == 1)
        labels, one = truth[name][known], found["classes"][name]
        pos, neg = sides.positive[name][known], sides.negative[name][known]
        assert one["auc_positive"] == pytest.approx(roc_auc_score(labels, pos))
        assert one["auc_negative"] == pytest.approx(roc_auc_score(labels, -neg))
        assert one["auc"] == pytest.approx(roc_auc_score(labels, pos - neg))
    for side in SIDES:
        both = [found["classes"][name][f"auc_{side}"] for name in "AB"]
        assert found[f"mean_auc_{side}"] == pytest.approx(np.mean(both))
        low, high = found["interval"][f"mean_auc_{side}"]
        assert low < found[f"mean_auc_{side}"] < high
    assert found["mean_auc_negative"] < 0.5 < found["mean_auc_positive"]


def test_every_image_counts_for_contradictions_and_the_classes_add_up(judged):
    sides, _, _, found = judged
    names = list(sides.positive)
    images = [
        {(n, side): getattr(sides, side)[n][row] for n in names for side in SIDES}
        for row in range(150)
    ]
    hits = contradicted_by_hand(images, names)
    parts = {**found["classes"], **found["refused"]}
    for name in names:
        assert parts[name]["contradiction_rate"] == pytest.approx(hits.count(name) / 150)
    share = sum(hit is not None for hit in hits) / 150
    assert found["contradiction_rate"] == pytest.approx(share)
    low, high = found["interval"]["contradiction_rate"]
    assert low < share < high


def test_weights_are_repetitions(judged):
    sides, truth, _, _ = judged
    rng = np.random.default_rng(5)
    weights = rng.integers(0, 3, 150)
    weighted = class_statistics(sides, {"B": truth["B"]}, weights[None].astype(float), None, {})
    again = np.repeat(np.arange(150), weights)
    copied = SideScores(
        {n: v[again] for n, v in sides.positive.items()},
        {n: v[again] for n, v in sides.negative.items()},
    )
    assert weighted["B/auc_negative"][0] == pytest.approx(
        roc_auc_score(truth["B"][again], -copied.negative["B"])
    )
    assert weighted["B/contradiction_rate"][0] == pytest.approx(copied.contradictions["B"].mean())
    every = sum(found.mean() for found in copied.contradictions.values())
    assert weighted["contradiction_rate"][0] == pytest.approx(every)


def test_constants_per_prompt_change_contradictions_and_no_auc(judged):
    sides, truth, patients, found = judged
    lifted = SideScores(
        {n: v + 100 * (n == "A") for n, v in sides.positive.items()},
        {n: v + 100 * (n == "A") for n, v in sides.negative.items()},
    )
    moved = named(lifted, truth, patients, draw=Draw(0))
    assert moved["contradiction_rate"] == moved["classes"]["A"]["contradiction_rate"] == 1
    for side in SIDES:
        assert moved[f"mean_auc_{side}"] == pytest.approx(found[f"mean_auc_{side}"])
