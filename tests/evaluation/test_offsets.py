"""One constant per prompt: the closed form, what it changes, and what it must not change."""

from __future__ import annotations

import json
import math
import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.cli import run
from medclip_debias.errors import UserError
from medclip_debias.evaluation.evaluate import EvaluationOptions
from medclip_debias.evaluation.offsets import prompt_offsets, read_offsets


@given(
    st.lists(st.floats(-1, 1), min_size=1, max_size=8),
    st.floats(1, 100),
    st.floats(-0.5, 0.5),
)
def test_the_constant_normalises_each_prompt_and_follows_a_shift(scores, scale, shift):
    column = np.array(scores)[:, None]
    found = prompt_offsets(column, scale)[0]
    mean = sum(math.exp(scale * (s - found)) for s in scores) / len(scores)
    assert mean == pytest.approx(1)
    assert min(scores) - 1e-9 <= found <= max(scores) + 1e-9
    assert prompt_offsets(column + shift, scale)[0] == pytest.approx(found + shift, abs=1e-9)


@pytest.fixture
def with_offsets(measured):
    """A function: zero-shot classification with the offsets of some images."""
    return lambda whose, **given: measured(
        "zero_shot", options=EvaluationOptions(offsets=whose), **given
    )


def test_offsets_move_decisions_and_no_auc(measured, with_offsets):
    plain, results = measured("zero_shot"), with_offsets("evaluated")
    found = results.details("zero_shot")
    assert found["offsets"]["images"] == found["images"]
    assert results.by_class("zero_shot", "auc") == plain.by_class("zero_shot", "auc")
    assert len(set(found["offsets"]["of_prompt"].values())) > 1


def test_kept_offsets_are_those_of_their_split(small_model, small_prepared, with_offsets, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(small_model, folder)
    words = ["evaluate", "offsets", f"{folder}", f"{small_prepared.folder}", "--split", "train"]
    assert run(words) == 0
    content = json.loads((folder / "offsets.json").read_text())
    there = int((small_prepared.images["split"] == "train").sum())
    assert content["images"] == there
    kept, train = (with_offsets(whose, model=folder) for whose in ("model", "train"))
    constants = kept.details("zero_shot")["offsets"]["of_prompt"]
    for text, value in train.details("zero_shot")["offsets"]["of_prompt"].items():
        assert constants[text] == pytest.approx(value, abs=1e-5)
    assert kept.value("zero_shot", "accuracy") == train.value("zero_shot", "accuracy")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, r"offsets\.json: is missing.*evaluate offsets"),
        ({"model_hash": "y", "offsets": {}}, "made with other weights"),
        ({"model_hash": "x", "offsets": {"a": 1.0}}, r'no offset for "b" \(1 of 2 prompts\)'),
        ({"model_hash": "x", "offsets": ["a"]}, "are not a number for each prompt"),
    ],
)
def test_offsets_that_do_not_fit_are_one_sentence(tmp_path, content, sentence):
    if content:
        (tmp_path / "offsets.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=sentence):
        read_offsets(tmp_path, "x", ["a", "b"])


def test_offsets_are_of_a_split_that_has_images_and_is_not_judged(
    small_model, small_prepared, with_offsets
):
    with pytest.raises(UserError, match="no image in the split 'validate'"):
        with_offsets("validate")
    words = ["evaluate", "offsets", f"{small_model}", f"{small_prepared.folder}"]
    assert run([*words, "--split", "test"]) == 2
