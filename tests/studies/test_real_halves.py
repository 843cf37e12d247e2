"""Classes that chosen claims tell nothing of, and a classifier's targets on several archives."""

from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias.data.prompts import load_prompts
from medclip_debias.data.text.claims.rules import RuleParser
from studies.real_halves import unknown_classes

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


@settings(max_examples=10)  # each reads the lexicon four times
@given(st.sets(st.sampled_from(FINDINGS)), st.sampled_from(FINDINGS))
def test_more_claims_leave_no_more_classes_unknown(chosen, further):
    for prompts in PROMPTS.values():
        more = unknown_classes(prompts, chosen | {further})
        assert set(more) <= set(unknown_classes(prompts, chosen))


def test_a_finding_that_implies_the_class_or_is_implied_makes_it_known():
    assert "Fracture" in unknown_classes(PROMPTS["openi"], ["pleural_effusion"])
    for finding in ("fracture", "acute_fracture", "old_fracture"):
        assert "Fracture" not in unknown_classes(PROMPTS["openi"], [finding])
