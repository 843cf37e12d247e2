"""Settings: inheritance, overrides, and one clear sentence for everything that is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_a_minimal_file_takes_the_papers_defaults(write):
    run = load_run(write(MINIMAL))
    assert (run.preprocessing.prepare.size, run.preprocessing.input_size) == (512, 480)
    assert (run.train.lr, run.train.batch_size, run.train.warmup_steps) == (1e-5, 64, 2000)
    assert run.model.similarity.initial_scale == 14


def test_overrides_win_and_read_scientific_notation(write):
    run = load_run(write(MINIMAL), ["train.lr=3e-4", "model.image.arch=resnet50"])
    assert run.train.lr == 3e-4
    assert run.model.image.arch == "resnet50"


def test_a_file_may_extend_another(write):
    write("train: {lr: 1e-3, steps: 7}\n", "base.yaml")
    path = write("extends: base.yaml\ntrain: {steps: 9}\n" + MINIMAL)
    run = load_run(path)
    assert (run.train.lr, run.train.steps) == (1e-3, 9)


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
        (
            MINIMAL + "train: {learning_rate: 1}\n",
            ["unknown setting 'train.learning_rate'", "lr"],
        ),
        (MINIMAL + "train: {lr: fast}\n", ["train.lr", "number", "'fast'"]),
        (MINIMAL + "train: {lr: -1}\n", ["train.lr", "greater than 0", "-1"]),
        (MINIMAL + "train: {batch_size: 1.5}\n", ["train.batch_size", "integer", "1.5"]),
        (MINIMAL + "train: {lr: .nan}\n", ["train.lr", "finite"]),
        ("out: o\nmodel: {text: {folder: lm}}\n", ["'prepared' is missing"]),
        (MINIMAL + "preprocessing: {input_size: 600}\n", ["preprocessing", "600", "512"]),
        ("- a\n- b\n", ["key: value", "list"]),
        ("a: [1\nb: 2\n", ["not valid YAML", "line 2"]),
        ("train:\n  lr: 1\nloss: {}\ntrain: {}\n", ["line 4", "'train' is already there"]),
        ("train: {lr: 1, lr: 2}\n", ["line 1", "'lr' is already there"]),
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


def test_a_missing_file_and_a_wrong_override_are_named(write, tmp_path):
    assert "no such file" in sentence(tmp_path / "none.yaml")
    path = write(MINIMAL)
    assert "'train.lr' is not a setting" in sentence(path, "train.lr")
    reported = sentence(path, "train.lrr=1")
    assert "train.lrr" in reported
    assert "run.yaml" in reported
    assert "command line" in reported


@given(st.floats(min_value=1e-12, max_value=1.0, allow_subnormal=False))
def test_any_printed_number_survives_the_command_line(value):
    content = apply_overrides({}, [f"lr={value!r}"])
    assert TrainSettings.model_validate(content).lr == value


def test_an_empty_file_is_an_empty_mapping(write):
    assert load_yaml(write("")) == {}
