"""Beside the arms on real films: classes that claims tell nothing of, differences over seeds."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from commands import exit_code
from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.text.claims.rules import RuleParser
from studies import real_arms, real_seeds
from studies.real_halves import unknown_classes
from studies.real_seeds import differences

STUDY = Path(__file__).parents[2] / "configs/studies/real_correction.yaml"
PROMPTS = {name: load_prompts(name) for name in ("openi", "chestxray14")}
FINDINGS = RuleParser().lexicon.names


@pytest.mark.parametrize("prompts", PROMPTS)
def test_a_half_of_the_lexicon_tells_nothing_of_classes_that_the_other_half_tells_of(prompts):
    arms = yaml.safe_load(STUDY.read_text(encoding="utf-8"))["arms"]
    halves = [arms[f"lexicon_half_{n}"]["claims"]["finding"] for n in (1, 2)]
    assert not set(halves[0]) & set(halves[1])
    first, second = (set(unknown_classes(PROMPTS[prompts], half)) for half in halves)
    assert first
    assert second
    assert not first & second


@settings(max_examples=4)  # each reads the lexicon four times
@given(st.sets(st.sampled_from(FINDINGS)), st.sampled_from(FINDINGS))
def test_more_claims_leave_no_more_classes_unknown(chosen, further):
    for prompts in PROMPTS.values():
        more = unknown_classes(prompts, chosen | {further})
        assert set(more) <= set(unknown_classes(prompts, chosen))


def test_a_finding_that_implies_the_class_or_is_implied_makes_it_known():
    assert "Fracture" in unknown_classes(PROMPTS["openi"], ["pleural_effusion"])
    for finding in ("fracture", "acute_fracture", "old_fracture"):
        assert "Fracture" not in unknown_classes(PROMPTS["openi"], [finding])


def test_differences_over_seeds_are_those_of_paired_t_tests():
    rng = np.random.default_rng(0)
    index = pd.MultiIndex.from_product([["a", "b", "c"], range(5)], names=["arm", "seed"])
    outcomes = pd.DataFrame(rng.normal(size=(15, 2)), index, ["x", "y"])
    outcomes.loc["b"] += 3.0
    outcomes.loc["c", "y"] = np.nan
    found = differences(outcomes, "a")
    for arm, outcome in [("b", "x"), ("b", "y"), ("c", "x")]:
        paired = stats.ttest_rel(outcomes.loc[arm, outcome], outcomes.loc["a", outcome])
        _, ends, p = found[outcome][arm]
        assert ends == pytest.approx(tuple(paired.confidence_interval()))
        assert np.isnan(p) == (arm == "c")  # which lacks an outcome
    lowest = min(stats.ttest_rel(outcomes.loc["b"], outcomes.loc["a"]).pvalue)
    assert min(found[name]["b"][2] for name in "xy") == pytest.approx(2 * lowest)
    assert "c" not in found["y"]


def test_a_table_without_arms_is_refused_in_a_sentence(tmp_path, monkeypatch, capsys):
    path = tmp_path / "seeds.csv"
    path.write_text("model,seed,x\na,0,.5\n")
    monkeypatch.setattr(sys, "argv", ["real_seeds.py", f"{path}"])
    assert exit_code(real_seeds.main) == 2
    assert "column 'arm' is missing" in capsys.readouterr().err


def test_arms_share_a_trunk_where_they_learn_from_the_same_films(tmp_path, monkeypatch):
    commands = []
    monkeypatch.setattr(real_arms, "command", lambda *words: commands.append(words))
    monkeypatch.setattr(
        real_arms, "training_sets", lambda out, study, arm, *, text: f"prepared={arm['labels']}"
    )
    study = {"settings": [], "preset": "clip"}
    for labels in ("many", "many", "few"):
        arm = {"pretrain": 2, "labels": labels}
        real_arms.train(tmp_path, study, arm, tmp_path / "run", 0)
    starts = [word for words in commands for word in map(str, words) if "start_from" in word]
    assert starts[0] == starts[1] != starts[2]
