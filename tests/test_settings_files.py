"""Settings: inheritance, overrides, and one clear sentence for everything that is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.config import settings_hash
from medclip_debias.errors import UserError
from medclip_debias.settings_files import apply_overrides, load_yaml, merge
from medclip_debias.training.resolve import load_run
from medclip_debias.training.settings import TrainSettings

MINIMAL = "prepared: p\nout: o\nmodel: {text: {folder: lm}}\n"


@pytest.fixture
def write(tmp_path):
    def _write(text, name="run.yaml"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return _write


def sentence(path, *overrides):
    with pytest.raises(UserError) as caught:
        load_run(path, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_overrides_win_and_read_scientific_notation(write):
    run = load_run(write(MINIMAL), ["train.lr=3e-4", "model.image.arch=resnet50"])
    assert run.train.lr == 3e-4
    assert run.model.image.arch == "resnet50"
    for override, said in (
        ("train.lr", "'train.lr' is not a setting"),
        ("train.lrr=1", "train.lrr"),
    ):
        assert said in sentence(write(MINIMAL), override)
    assert "command line" in sentence(write(MINIMAL), "train.lrr=1")


def test_a_file_may_extend_several_others_the_later_over_the_earlier(write):
    write(
        "train: {lr: 1e-3, steps: 7}\nloss: {kind: debiased, direction: symmetric}\n", "base.yaml"
    )
    write("loss: {kind: infonce}\n", "loss.yaml")
    run = load_run(write("extends: [base.yaml, loss.yaml]\n" + MINIMAL))
    assert run.loss == {"kind": "infonce"}
    assert run.train.steps == 7


def test_changing_the_kind_of_a_choice_drops_the_other_kinds_settings():
    base = {"loss": {"eta": {"kind": "language_model", "a": 0.2}}}
    over = {"loss": {"eta": {"kind": "constant", "value": 0.1}}}
    assert merge(base, over) == over


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (MINIMAL + "trian: {lr: 1}\n", ["unknown setting 'trian'", "did you mean 'train'"]),
        (MINIMAL + "train: {lr: fast}\n", ["train.lr", "number", "'fast'"]),
        ("out: o\nmodel: {text: {folder: lm}}\n", ["'prepared' is missing"]),
        ("- a\n- b\n", ["key: value", "list"]),
        ("a: [1\nb: 2\n", ["not valid YAML", "line 2"]),
        ("train:\n  lr: 1\nloss: {}\ntrain: {}\n", ["line 4", "'train' is already there"]),
        ("train: 2024-13-01\n", ["not valid YAML", "month"]),
        ("train: &a [*a]\n", ["nested without end"]),
        ("train: " + 5000 * "[" + "\n", ["nested without end"]),
        ("extends: run.yaml\n", ["extends", "links"]),
        ("extends: nowhere.yaml\n", ["nowhere.yaml", "no such file"]),
    ],
)
def test_a_wrong_file_is_one_sentence_naming_key_and_file(write, text, words):
    reported = sentence(write(text))
    for word in ["run.yaml" if "nowhere" not in text else "nowhere.yaml", *words]:
        assert word in reported


def test_anchors_and_merged_keys_may_be_overridden(write):
    text = "x: &usual {a: 1, b: 2}\ny: {<<: *usual, b: 3}\nz: *usual\n"
    assert load_yaml(write(text))["y"] == {"a": 1, "b": 3}


def test_equal_settings_have_equal_hashes_and_others_do_not():
    assert settings_hash(TrainSettings()) == settings_hash(TrainSettings(lr=1e-5))
    assert settings_hash(TrainSettings()) != settings_hash(TrainSettings(lr=2e-5))


@given(st.floats(min_value=1e-12, max_value=1.0, allow_subnormal=False))
def test_any_printed_number_survives_the_command_line(value):
    content = apply_overrides({}, [f"lr={value!r}"])
    assert TrainSettings.model_validate(content).lr == value
