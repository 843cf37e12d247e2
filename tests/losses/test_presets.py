"""Named presets: what each is, which are the paper's rows, and how one is put over a run."""

from __future__ import annotations

import pytest

from medclip_debias.evaluation.catalogue import PAPER_TABLE_1
from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.losses.presets import NAMED, presets, with_preset
from medclip_debias.settings_files import apply_overrides, load_yaml, merge

PLAIN = {"kind": "infonce", "direction": "text_to_image"}
DEBIASED = {"kind": "debiased", "direction": "text_to_image", "positives": "pair", "negatives": []}
# Wang et al. 2023, Table 1, from the first row to the last, and what sections 2 and 3 say of each.
ROWS = {
    "biovil": {"kind": "biovil", "direction": "symmetric"},
    "no_correction": PLAIN | {"negatives": []},
    "remove_by_labels": PLAIN | {"negatives": "remove_by_label"},
    "resample_by_text": PLAIN | {"negatives": "resample_by_text"},
    "remove_by_text": PLAIN | {"negatives": "remove_by_text"},
    "reweight_by_text": PLAIN | {"negatives": "reweight_by_text"},
    "debiased_0.05": DEBIASED | {"eta": {"kind": "constant", "value": 0.05}},
    "debiased_0.1": DEBIASED | {"eta": {"kind": "constant", "value": 0.1}},
    "debiased_language_model": DEBIASED | {"eta": {"kind": "language_model", "a": 0.2, "k": 0.35}},
}


def complete(name):
    return with_preset({}, name, "test")["loss"]


def test_the_rows_of_table_1_are_those_of_the_paper_in_its_order():
    rows = [(name, one.table_1) for name, one in presets().items() if one.table_1]
    assert [name for name, _ in rows] == list(ROWS)
    assert [(row.row, row.name) for _, row in rows] == list(enumerate(PAPER_TABLE_1, 1))


@pytest.mark.parametrize("name", ROWS)
def test_a_row_computes_what_the_paper_says(name):
    loss = complete(name)
    for setting, expected in ROWS[name].items():
        value = loss[setting]
        if setting == "eta":
            value = {key: value[key] for key in expected}
        elif isinstance(expected, str) and setting == "negatives":
            (value,) = (policy["kind"] for policy in value)
        assert value == expected


def test_each_says_what_it_is_and_stands_over_a_run_of_any_loss():
    """Nothing is left of the loss that it takes the place of; its folder has its name."""
    for name, each in presets().items():
        assert each.about.endswith(".")
        assert each.paper
        build_objective(loss_settings(each.loss, name))
        for under in ("multi_positive_claims", "sogclr_glofnd", "debiased_0.1"):
            below = {"loss": complete(under), "train": {"steps": 3}, "out": "runs/a"}
            settings = with_preset(below, name, "test")
            assert settings["loss"] == complete(name)
            assert settings["train"] == {"steps": 3}
            assert settings["out"] == f"runs/a/{name}"
            assert below["loss"] == complete(under)
        assert "out" not in with_preset({}, name, "test")


def test_words_after_it_win_and_what_it_sets_beside_the_loss_goes_over_the_model():
    settings = apply_overrides(with_preset({}, "debiased_0.05", "test"), ["loss.eta.value=0.2"])
    assert loss_settings(settings["loss"], "test").eta.value == 0.2
    below = {"model": {"dim": 16, "similarity": {"aggregator": "lse", "k": 5}}}
    settings = with_preset(below, "biovil", "test")
    assert settings["model"] == {"dim": 16, "similarity": {"aggregator": "global", "k": 5}}


def test_a_file_inherits_one_and_stands_over_it(tmp_path):
    run = tmp_path / "run.yaml"
    run.write_text("extends: [loss:clip]\nout: runs/b\nloss: {direction: text_to_image}\n")
    settings = load_yaml(run, NAMED)
    assert settings["out"] == "runs/b"
    assert settings["loss"] == merge(complete("clip"), {"direction": "text_to_image"})
