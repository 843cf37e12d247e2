"""Zero-shot decisions, label policies and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, roc_auc_score

from medclip_debias.data.labels import LabelPolicy
from medclip_debias.data.prompts import PromptSet, load_prompts
from medclip_debias.errors import UserError
from medclip_debias.evaluation.protocol import Draw
from medclip_debias.evaluation.zero_shot import prompt_differences
from tests.evaluation.conftest import judged

NAN = float("nan")


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


def test_prompt_files_are_checked(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("name: mine\nclasses:\n  Edema:\n    positive: [Wet lungs]\n")
    with pytest.raises(UserError, match=r"mine\.yaml: setting 'classes\.Edema\.negative' is mis"):
        load_prompts(path)
    path.write_text("name: m\nclasses: {Edema: {positive: [' '], negative: [dry]}}\n")
    with pytest.raises(UserError, match=r"classes\.Edema\.positive\.0"):
        load_prompts(path)
    with pytest.raises(UserError, match="no such file"):
        load_prompts(tmp_path / "absent.yaml")
    assert load_prompts(load_prompts().model_dump(mode="json")) == load_prompts()


def test_several_prompts_are_averaged_after_scoring():
    prompts = PromptSet.model_validate(
        {
            "name": "two",
            "classes": {
                "A": {"positive": ["a", "b"], "negative": ["no"]},
                "B": {"positive": ["c"], "negative": ["no"]},
            },
        }
    )
    assert prompts.texts == ["a", "b", "no", "c"]
    scores = np.array([[0.2, 0.6, 0.1, 0.9]])
    found = prompt_differences(scores, prompts)
    assert found["A"][0] == pytest.approx(0.3)
    assert found["B"][0] == pytest.approx(0.8)


def test_metrics_equal_scikit_learn_and_others_are_left_out():
    rng = np.random.default_rng(0)
    truth = rng.choice([0.0, 1.0, -1.0, NAN], 200, p=[0.4, 0.3, 0.2, 0.1])
    difference = rng.normal(size=200) + np.nan_to_num(truth)
    other = rng.choice([0.0, 1.0], 200)
    result = judged(
        {"A": difference, "B": -difference},
        {"A": truth, "B": other},
        [str(i // 2) for i in range(200)],
        draw=Draw(200),
    )
    known = (truth == 0) | (truth == 1)
    one = result["classes"]["A"]
    assert one["auc"] == pytest.approx(roc_auc_score(truth[known], difference[known]))
    decided = difference[known] > 0
    assert one["accuracy"] == pytest.approx((decided == (truth[known] == 1)).mean())
    assert one["balanced_accuracy"] == pytest.approx(
        balanced_accuracy_score(truth[known] == 1, decided)
    )
    assert one["left_out"] == (~known).sum() == one["uncertain"] + one["blank"]
    assert one["positive"] + one["negative"] + one["left_out"] == 200
    two = result["classes"]["B"]
    for title, metric in (("mean_auc", "auc"), ("accuracy",) * 2, ("balanced_accuracy",) * 2):
        assert result[title] == pytest.approx((one[metric] + two[metric]) / 2)
        low, high = result["interval"][title]
        assert low < result[title] < high


def test_label_policies():
    values = np.array([1, 0, -1, NAN, 0.5])

    def applied(**policy):
        return LabelPolicy(**policy).apply(values).tolist()

    assert applied() == pytest.approx([1, 0, NAN, NAN, NAN], nan_ok=True)
    assert applied(uncertain="as_positive") == pytest.approx([1, 0, 1, NAN, NAN], nan_ok=True)
    assert applied(uncertain="as_negative", blank="as_negative") == pytest.approx(
        [1, 0, 0, 0, NAN], nan_ok=True
    )


def test_a_class_with_one_label_value_is_refused_with_its_counts():
    result = judged(
        {"A": np.array([1.0, -1, 2]), "B": np.array([1.0, 2, 3]), "C": np.zeros(3)},
        {"A": np.array([1.0, 0, 1]), "B": np.array([1.0, 1, NAN])},
        ["p", "q", "r"],
        draw=Draw(20),
    )
    assert list(result["classes"]) == ["A"]
    assert result["mean_auc"] == 1.0
    assert result["refused"]["B"]["reason"] == "one label value only"
    assert result["refused"]["B"]["positive"] == 2
    assert result["refused"]["B"]["negative"] == 0
    assert result["refused"]["C"]["reason"] == "no such label column"
    with pytest.raises(UserError, match=r"none has them \(B 2 present, 0 absent\)"):
        judged({"B": np.ones(2)}, {"B": np.ones(2)}, ["p", "q"])


def test_equal_prompt_scores_decide_for_absent():
    result = judged({"A": np.zeros(4)}, {"A": np.array([1.0, 0, 0, 0])}, list("abcd"))
    assert result["accuracy"] == 0.75
    assert result["mean_auc"] == 0.5
