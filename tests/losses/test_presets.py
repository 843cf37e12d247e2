"""Named presets: what each is, which are the paper's rows, and how one is put over a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import PAPER_TABLE_1
from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.losses.presets import NAMED, preset, presets, with_preset
from medclip_debias.settings_files import apply_overrides, load_yaml, merge

# Wang et al. 2023, Table 1, from the first row to the last, and what sections 2 and 3 say of each.
ROWS = {
    "biovil": {"kind": "biovil", "direction": "symmetric"},
    "no_correction": {"kind": "infonce", "direction": "text_to_image", "negatives": []},
    "remove_by_labels": "remove_by_label",
    "resample_by_text": "resample_by_text",
    "remove_by_text": "remove_by_text",
    "reweight_by_text": "reweight_by_text",
    "debiased_0.05": {"kind": "constant", "value": 0.05},
    "debiased_0.1": {"kind": "constant", "value": 0.1},
    "debiased_language_model": {"kind": "language_model", "a": 0.2, "k": 0.35},
}


def complete(name):
    return with_preset({}, name, "test")["loss"]


def test_the_rows_of_table_1_are_those_of_the_paper_in_its_order():
    rows = [(name, one.table_1) for name, one in presets().items() if one.table_1]
    assert [name for name, _ in rows] == list(ROWS)
    assert [row.row for _, row in rows] == list(range(1, 10))
    assert [row.name for _, row in rows] == list(PAPER_TABLE_1)


@pytest.mark.parametrize("name", ROWS)
def test_a_row_computes_what_the_paper_says(name):
    loss, said = complete(name), ROWS[name]
    if isinstance(said, str):  # a policy on InfoNCE from sentences to images
        assert (loss["kind"], loss["direction"]) == ("infonce", "text_to_image")
        assert [policy["kind"] for policy in loss["negatives"]] == [said]
    elif name.startswith("debiased"):
        assert (loss["kind"], loss["direction"]) == ("debiased", "text_to_image")
        assert (loss["positives"], loss["negatives"]) == ("pair", [])
        assert loss["eta"].items() >= said.items()
    else:
        assert loss.items() >= said.items()


@pytest.mark.parametrize("name", presets())
def test_each_builds_its_objective_and_says_what_it_is(name):
    found = preset(name, "test")
    build_objective(loss_settings(found.loss, name))
    assert found.about.endswith(".")
    assert found.paper
    assert "out" not in with_preset({}, name, "test")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("xclrr", "did you mean 'xclr'"),
        ("infonce", "loss.kind=infonce"),
        ("../presets/fnc", "no preset '../presets/fnc'"),
        ("", "no preset ''"),
    ],
)
def test_an_unknown_name_is_one_sentence(name, said):
    with pytest.raises(UserError) as caught:
        with_preset({}, name, "run.yaml")
    text = str(caught.value)
    assert text.startswith("run.yaml: there is no preset")
    assert said in text
    assert "medclip-debias losses" in text
    assert "\n" not in text


# ------------------------------------------------------------------------- over the settings


@given(over=st.sampled_from(list(presets())), under=st.sampled_from(list(presets())))
def test_nothing_is_left_of_the_loss_that_it_takes_the_place_of(over, under):
    below = {"loss": complete(under), "train": {"steps": 3}}
    found = with_preset(below, over, "test")
    assert found["loss"] == complete(over)
    assert found["train"] == {"steps": 3}
    assert below["loss"] == complete(under)


def test_words_after_it_win():
    found = apply_overrides(with_preset({}, "debiased_0.05", "test"), ["loss.eta.value=0.2"])
    assert loss_settings(found["loss"], "test").eta.value == 0.2


def test_what_it_sets_beside_the_loss_goes_over_the_model():
    below = {"model": {"dim": 16, "similarity": {"aggregator": "lse", "k": 5}}}
    found = with_preset(below, "biovil", "test")
    assert found["model"] == {"dim": 16, "similarity": {"aggregator": "global", "k": 5}}


def test_each_gets_a_folder_of_its_name_below_the_runs():
    folders = {with_preset({"out": "runs/a"}, name, "test")["out"] for name in presets()}
    assert folders == {f"runs/a/{name}" for name in presets()}


def test_a_file_inherits_one_and_stands_over_it(tmp_path):
    (tmp_path / "base.yaml").write_text(
        "out: runs/a\nloss: {kind: clip, negatives: [{kind: fnc}]}\ntrain: {steps: 3}\n"
    )
    run = tmp_path / "run.yaml"
    run.write_text("extends: [base.yaml, loss:debiased_0.1]\n")
    found = load_yaml(run, NAMED)
    assert found == {
        "out": "runs/a/debiased_0.1",
        "loss": complete("debiased_0.1"),
        "train": {"steps": 3},
    }
    run.write_text(
        "extends: [base.yaml, loss:clip]\nout: runs/b\nloss: {direction: text_to_image}\n"
    )
    found = load_yaml(run, NAMED)
    assert found["out"] == "runs/b"
    assert found["loss"] == merge(complete("clip"), {"direction": "text_to_image"})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("extends: [loss:xclrr]\n", "did you mean 'xclr'"),
        ("extends: [loss: xclr]\n", "no blank after a colon"),
        ("extends: 3\n", "'extends' takes names of files, loss:NAME"),
    ],
)
def test_a_name_in_a_file_that_is_none_is_one_sentence_with_the_file(tmp_path, text, said):
    run = tmp_path / "run.yaml"
    run.write_text(text)
    with pytest.raises(UserError) as caught:
        load_yaml(run, NAMED)
    assert str(caught.value).startswith(f"{run}: ")
    assert said in str(caught.value)
