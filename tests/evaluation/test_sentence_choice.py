"""What an image is asked: true, denied and foreign sentences, the same at every call."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.evaluation.phrase_selection import select_phrases
from medclip_debias.evaluation.sentence_choice import (
    choose,
    choose_threshold,
    fit_level,
)
from medclip_debias.grounding.counterparts import Reader
from medclip_debias.grounding.settings import SuppressionSettings


def hand_made(reports, labels=None, marks=None):
    """As much of a prepared set as is read: one frontal image a study."""
    names = list(reports)
    rows = [(n, text) for n, texts in reports.items() for text in texts]
    table = pd.DataFrame(marks or [], columns=["text", "abnormal"])
    return SimpleNamespace(
        images=pd.DataFrame({"image_id": names, "study_id": names, "split": "validate"}),
        sentences=pd.DataFrame(rows, columns=["study_id", "text"]),
        studies=pd.DataFrame({"study_id": names, **(labels or {})}),
        frontal=np.ones(len(names), dtype=bool),
        annotation_names=("grounded_sentences",) if marks else (),
        annotations=lambda name: table,
    )


@pytest.fixture(scope="module")
def reader():
    return Reader()


def asked(data, reader, per_image=9):
    found = choose(data, "validate", per_image, reader)
    names = data.images["image_id"]
    return found, {(names.iloc[q.row], q.kind, q.text) for q in found.queries}


REPORTS = {
    "a": ["Small left pleural effusion.", "No pneumothorax.", "Comparison is made."],
    "b": ["Right pneumothorax.", "No pleural effusion.", "Possible edema."],
    "c": [],
}


def test_a_foreign_sentence_is_one_whose_findings_are_denied_here(reader):
    found, kinds = asked(hand_made(REPORTS), reader)
    assert kinds == {
        ("a", "said", "Small left pleural effusion."),
        ("a", "denial", "No pneumothorax."),
        ("a", "elsewhere", "Right pneumothorax."),
        ("b", "said", "Right pneumothorax."),
        ("b", "denial", "No pleural effusion."),
        ("b", "elsewhere", "Small left pleural effusion."),
    }
    assert found.counts["images"] == 3
    assert found.counts["images_without_report"] == 1


def test_labels_deny_too_and_a_label_that_is_not_0_speaks_against_foreign(reader):
    labels = {"Pneumothorax": [1.0, 1.0, 0.0], "Pleural Effusion": [1.0, -1.0, np.nan]}
    _, kinds = asked(hand_made(REPORTS, labels), reader)
    foreign = {one for one in kinds if one[1] == "elsewhere"}
    # a's label says pneumothorax, b's that an effusion is possible; c is denied one of the two.
    assert foreign == {("c", "elsewhere", "Right pneumothorax.")}


def test_the_readers_mark_goes_before_the_words(reader):
    marks = [("Comparison is made", False), ("No pneumothorax.", True)]
    _, kinds = asked(hand_made(REPORTS, marks=marks), reader)
    assert {text for name, kind, text in kinds if (name, kind) == ("a", "denial")} == {
        "Comparison is made."
    }


def test_the_choice_is_reproducible_and_no_larger_than_asked(reader):
    many = {f"i{n}": ["No edema.", "No fracture.", "No pneumothorax."] for n in range(6)}
    many["x"] = ["Mild edema.", "Rib fracture.", "Left pneumothorax.", "Severe edema."]
    first, kinds = asked(hand_made(many), reader, per_image=2)
    turned = dict(reversed([(name, texts[::-1]) for name, texts in many.items()]))
    assert asked(hand_made(turned), reader, per_image=2)[1] == kinds
    assert first.counts["elsewhere"] == 12
    assert first.counts["elsewhere_found"] == 24


def test_an_image_with_boxes_is_asked_all_of_them_and_nothing_that_they_show(
    small_prepared, reader
):
    phrases = select_phrases(small_prepared, "test", 40)
    found = choose(small_prepared, "test", 3, reader, phrases=phrases)
    boxed = [query for query in found.queries if query.kind == "boxed"]
    assert sorted(query.phrase for query in boxed) == list(range(len(phrases.phrases)))
    shown = {}
    for phrase in phrases.phrases:
        shown.setdefault(phrase.row, set()).update(reader.asserted(phrase.text))
    foreign = [query for query in found.queries if query.kind == "elsewhere"]
    assert foreign
    assert all(not shown[q.row] & set(reader.asserted(q.text)) for q in foreign)
    assert {query.kind for query in found.queries} <= {"boxed", "denial", "elsewhere"}


# ----------------------------------------------------------------------------- how a rule is chosen


@given(
    st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=2, max_size=40),
    st.sampled_from([0.5, 0.8, 0.95, 0.98]),
    st.sampled_from(["kept", "specificity"]),
)
def test_the_threshold_holds_the_aim_and_no_better_one_does(items, share, aim):
    values = np.array([float(value) for value, _ in items])
    there = np.array([is_there for _, is_there in items])
    if there.all() or not there.any():
        return
    threshold = choose_threshold(values, there, SuppressionSettings(aim=aim, share=share))

    def held(t):
        if aim == "kept":
            return (values[there] >= t).mean() >= share - 1e-12
        return (values[~there] < t).mean() >= share - 1e-12

    def gain(t):
        return (values[~there] < t).mean() if aim == "kept" else (values[there] >= t).mean()

    assert held(threshold)
    tries = [*values, *(v + 0.5 for v in values), values.min() - 1]
    assert gain(threshold) == max(gain(t) for t in tries if held(t))


def test_levels_are_those_of_a_ridge_regression_whose_penalty_leaving_one_out_prefers():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 4))
    levels = vectors @ [0.3, -0.2, 0.0, 0.1] + 0.7 + rng.normal(0, 0.05, 30)

    def ridge(x, y, penalty):
        centre = x.mean(axis=0)
        a = x - centre
        w = np.linalg.solve(a.T @ a + penalty * np.eye(4), a.T @ (y - y.mean()))
        return w, y.mean() - centre @ w

    def left_out(penalty):
        errors = []
        for n in range(30):
            keep = np.arange(30) != n
            w, b = ridge(vectors[keep], levels[keep], penalty)
            errors.append(levels[n] - vectors[n] @ w - b)
        return np.mean(np.square(errors))

    weights, constant, explained = fit_level(vectors, levels)
    best = min(np.logspace(-4, 2, 13), key=left_out)
    wanted, b = ridge(vectors, levels, best)
    np.testing.assert_allclose(weights, wanted, rtol=1e-9)
    assert constant == pytest.approx(b)
    assert explained == pytest.approx(1 - left_out(best) / levels.var(), rel=0.02)
    weights, constant, explained = fit_level(np.ones((3, 5)), np.full(3, 0.4))  # equal sentences
    assert weights @ np.ones(5) + constant == pytest.approx(0.4)
    assert explained == 0
