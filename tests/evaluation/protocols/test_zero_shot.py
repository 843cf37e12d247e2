"""Zero-shot decisions, both sides, contradictions and refusals, by scikit-learn and plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    f1_score,
    roc_auc_score,
)

from medclip_debias.data.prompts import PromptSet, load_prompts
from medclip_debias.errors import UserError
from medclip_debias.evaluation.multiclass import exclusive_classes, multiclass_accuracy
from medclip_debias.evaluation.protocol import Draw, Skipped
from medclip_debias.evaluation.protocols.zero_shot import class_statistics, zero_shot
from medclip_debias.evaluation.sides import SideScores, prompt_differences

NAN = float("nan")
SIDES = ("positive", "negative")


def by_name(measured):
    """The numbers of a protocol by name beside its details, those of a class below it."""
    whole = [row for row in measured.rows if row.of_class is None and row.group is None]
    found = measured.details | {row.metric: row.value for row in whole}
    found["interval"] = {row.metric: (row.low, row.high) for row in whole}
    for part in ("classes", "refused"):
        found[part] = {
            name: own | {row.metric: row.value for row in measured.rows if row.of_class == name}
            for name, own in measured.details.get(part, {}).items()
        }
    return found


def judged(differences, *given, **options):
    """`by_name` of `zero_shot` on score differences alone."""
    nothing = {name: np.zeros(len(values)) for name, values in differences.items()}
    return by_name(zero_shot(SideScores(differences, nothing), *given, **options))


# -------------------------------------------------------------------------------- prompts


def test_the_packaged_prompts_are_table_2_of_the_paper():
    prompts = load_prompts()
    sides = {n: (c.negative, c.positive) for n, c in prompts.classes.items()}
    assert sides == {
        "Pneumonia": (("No signs of pneumonia",), ("Findings suggesting pneumonia",)),
        "Cardiomegaly": (("Heart size normal",), ("Cardiomegaly",)),
        "Edema": (("No pulmonary edema",), ("Pulmonary edema",)),
        "Pleural Effusion": (("No pleural effusions",), ("Pleural effusions",)),
        "Pneumothorax": (("No pneumothorax",), ("Pneumothorax",)),
    }
    assert load_prompts(prompts.model_dump(mode="json")) == prompts


def test_several_prompts_are_averaged_after_scoring_and_shared_ones_have_no_chance_level():
    sides = {
        "A": {"positive": ["a", "b"], "negative": ["no", "normal"]},
        "B": {"positive": ["c"], "negative": ["normal", "no"]},
    }
    prompts = PromptSet.model_validate({"name": "two", "classes": sides})
    assert prompts.texts == ["a", "b", "no", "normal", "c"]
    found = prompt_differences(np.array([[0.2, 0.6, 0.1, 0.3, 0.9]]), prompts)
    assert found["A"][0] == pytest.approx(0.2)
    assert found["B"][0] == pytest.approx(0.7)
    shared = SideScores.of(np.random.default_rng(1).normal(size=(50, 5)), prompts)
    assert shared.chance is None
    assert not any(images.any() for images in shared.contradictions.values())


# -------------------------------------------------------------------------------- metrics


def contradicted_by_hand(sides):
    """For each image the class whose two sides are above all others, found by comparing all."""
    found = []
    for image in range(len(next(iter(sides.positive.values())))):
        scores = {n: [getattr(sides, side)[n][image] for side in SIDES] for n in sides.positive}
        hits = [
            name
            for name, own in scores.items()
            if min(own) > max(max(other) for n, other in scores.items() if n != name)
        ]
        found.append(hits[0] if hits else None)
    return found


def three():
    """Scores and labels of three classes, one without negatives; some have no label."""
    rng = np.random.default_rng(3)
    truth = {
        "A": rng.choice([0.0, 1.0, -1.0, NAN], 150, p=[0.4, 0.4, 0.1, 0.1]),
        "B": rng.choice([0.0, 1.0], 150),
        "C": np.ones(150),
    }
    score = {n: np.nan_to_num(v) for n, v in truth.items()}
    sides = SideScores(
        {n: np.round(v + rng.normal(size=150), 1) for n, v in score.items()},
        {n: np.round(0.3 * v + rng.normal(size=150), 1) for n, v in score.items()},
    )
    return sides, truth


def test_weights_are_repetitions():
    sides, truth = three()
    weights = np.random.default_rng(5).integers(0, 3, 150)
    again = np.repeat(np.arange(150), weights)
    copied = SideScores(*({n: v[again] for n, v in getattr(sides, side).items()} for side in SIDES))
    labels, ones = truth["B"], np.ones((1, len(again)))
    weighted = class_statistics(sides, {"B": labels}, weights[None].astype(float), 5.0, {"B": 0.2})
    repeated = class_statistics(copied, {"B": labels[again]}, ones, 5.0, {"B": 0.2})
    for name, values in weighted.items():
        assert values == pytest.approx(repeated[name]), name


def test_metrics_equal_scikit_learn_and_others_are_left_out():
    sides, truth = three()
    patients = [str(n // 3) for n in range(150)]
    found = by_name(zero_shot(sides, truth, patients, draw=Draw(100)))
    for name in "AB":
        known = (truth[name] == 0) | (truth[name] == 1)
        labels, one = truth[name][known], found["classes"][name]
        pos, neg = sides.positive[name][known], sides.negative[name][known]
        decided = pos - neg > 0
        expected = {
            "auc": roc_auc_score(labels, pos - neg),
            "auc_positive": roc_auc_score(labels, pos),
            "auc_negative": roc_auc_score(labels, -neg),
            "accuracy": (decided == (labels == 1)).mean(),
            "balanced_accuracy": balanced_accuracy_score(labels == 1, decided),
            "average_precision": average_precision_score(labels, pos - neg),
        }
        assert {metric: one[metric] for metric in expected} == pytest.approx(expected)
        assert one["left_out"] == (~known).sum() == one["uncertain"] + one["blank"]
    means = {"mean_auc": "auc", "accuracy": "accuracy", "balanced_accuracy": "balanced_accuracy"}
    means |= {f"mean_auc_{side}": f"auc_{side}" for side in SIDES}
    for mean, metric in means.items():
        assert found[mean] == np.mean([found["classes"][name][metric] for name in "AB"])
        low, high = found["interval"][mean]
        assert low < found[mean] < high
    assert found["refused"]["C"]["reason"] == "one label value only"
    assert (found["refused"]["C"]["positive"], found["refused"]["C"]["negative"]) == (150, 0)
    hits = contradicted_by_hand(sides)
    for name, one in {**found["classes"], **found["refused"]}.items():
        assert one["contradiction_rate"] == pytest.approx(hits.count(name) / 150)
    assert found["contradiction_rate"] == pytest.approx(1 - hits.count(None) / 150)
    with pytest.raises(UserError, match=r"none has them \(B 2 present, 0 absent\)"):
        judged({"B": np.ones(2)}, {"B": np.ones(2)}, ["p", "q"])


def test_few_patients_with_a_finding_are_named_and_have_no_interval_of_it():
    """Four images of three patients; of other classes and of all images there are intervals."""
    rng, patients = np.random.default_rng(1), [str(max(n, 1)) for n in range(60)]
    truth = {"A": np.arange(60.0) < 4, "B": np.arange(60.0) % 2}
    sides = SideScores(
        *({name: rng.normal(size=60) + t for name, t in truth.items()} for _ in "pn")
    )
    found = zero_shot(sides, truth, patients, draw=Draw(100))
    assert found.details["few_patients"] == ["A (3 with it, 56 without)"]
    bounded = {
        name: {r.metric for r in found.rows if r.of_class == name and r.low} for name in truth
    }
    assert bounded["A"] == {"accuracy", "contradiction_rate"}
    assert bounded["B"] > bounded["A"] | {"auc", "average_precision", "balanced_accuracy"}


def test_equal_prompt_scores_decide_for_absent():
    result = judged({"A": np.zeros(4)}, {"A": np.array([1.0, 0, 0, 0])}, list("abcd"))
    assert result["accuracy"] == 0.75
    assert result["mean_auc"] == 0.5


def test_f1_uses_a_threshold_chosen_elsewhere_or_says_why_not():
    truth = np.array([1.0, 1, 0, 0, -1])
    difference = np.array([0.5, 0.1, 0.2, -0.3, 0.0])
    given_there = ({"A": np.array([0.3, 0.15, 0.1, 9.0])}, {"A": np.array([1.0, 1, 0, NAN])})
    given_here = ({"A": difference}, {"A": truth}, list("abcde"))
    found = judged(*given_here, validation=given_there, draw=Draw(20))
    one = found["classes"]["A"]
    assert one["threshold"] == {
        **{"value": 0.15, "f1_there": 1.0, "images": 4, "positive": 2, "negative": 1},
        **{"uncertain": 0, "blank": 1},
    }
    assert one["f1"] == found["f1"] == f1_score(truth[:4], difference[:4] >= 0.15)
    none = judged(*given_here, validation="no such split")
    assert none["classes"]["A"]["threshold"] == {"reason": "no such split"}
    single = ({"A": np.ones(2)}, {"A": np.ones(2)})
    one = judged(*given_here, validation=single)["classes"]["A"]
    assert "one label value only" in one["threshold"]["reason"]


def test_the_scale_turns_differences_into_probabilities_and_without_one_there_are_none():
    truth, difference = np.array([1.0, 0, 1, 0]), np.array([0.2, 0.1, -0.1, -0.3])
    found = judged({"A": difference}, {"A": truth}, list("abcd"), scale=10.0)["classes"]["A"]
    probability = 1 / (1 + np.exp(-10 * difference))
    assert [b["probability"] for b in found["reliability"]] == pytest.approx(sorted(probability))
    assert found["ece"] == pytest.approx(np.abs(probability - truth).mean())
    bare = judged({"A": difference}, {"A": truth}, list("abcd"), scale=None, draw=Draw(5))
    assert "ece" not in bare
    assert bare["classes"]["A"]["reliability"] == []
    assert bare["mean_auc"] == 0.75


# -------------------------------------------------------------------------- several classes


def test_only_images_with_exactly_one_class_take_part():
    labels = {
        "A": np.array([1.0, 1, 1, 0, NAN, 1]),
        "B": np.array([0.0, 1, -1, NAN, NAN, NAN]),
        "C": np.array([NAN, 0, 0, 0, 1, 0]),
    }
    assert exclusive_classes(labels, ["A", "B", "C"]).tolist() == [0, -1, -1, -1, 2, 0]


def test_multi_class_accuracy_counts_ties_by_their_share():
    scores = np.array([[0.9, 0.1, 0.0], [0.5, 0.5, 0.0], [0.0, 0.2, 0.1], [0.3, 0.3, 0.3]])
    truth, names = np.array([0, 1, 0, 1]), ["A", "B", "C"]
    found = by_name(multiclass_accuracy(scores, truth, names, list("pqrs"), Draw(50, 0)))
    assert found["multiclass_accuracy"] == pytest.approx((1 + 1 / 2 + 0 + 1 / 3) / 4)
    balanced = ((1 + 0) / 2 + (1 / 2 + 1 / 3) / 2) / 2
    assert found["multiclass_balanced_accuracy"] == pytest.approx(balanced)
    assert found["classes"]["C"] == {"images": 0}
    np.testing.assert_allclose(np.sum(found["confusion"], axis=1), [2, 2, 0])
    low, high = found["interval"]["multiclass_accuracy"]
    assert low < found["multiclass_accuracy"] < high
    with pytest.raises(Skipped, match="2 of A, 0 of B"):
        multiclass_accuracy(scores[:2], np.zeros(2, int), names, list("pq"), Draw())


def test_n_leaves_out_images_without_a_label_but_for_what_needs_none():
    scores = np.random.default_rng(3).normal(size=(4, 6))
    sides = SideScores(*({"A": scores[n], "B": scores[n + 1]} for n in (0, 2)))
    truth = {"A": np.array([1, 0, NAN, NAN, -1, 0]), "B": np.array([NAN, 1, 0, NAN, NAN, NAN])}
    found = zero_shot(sides, truth, list("abcdef"), draw=Draw(0))
    assert found.row("mean_auc").n == 4  # of the six one is blank, and one uncertain
    assert [found.row("auc", name).n for name in "AB"] == [3, 2]
    assert found.row("contradiction_rate").n == found.row("contradiction_rate", "A").n == 6
