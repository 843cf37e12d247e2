"""Objectives are found by their kind, and their settings validated with the key's name."""

from __future__ import annotations

import pytest

from medclip_debias.errors import UserError
from medclip_debias.losses import CLIP, BioViL, DebiasedContrastive, LanguageModelEta
from medclip_debias.losses.objective import build_objective, loss_settings, objectives


def test_every_objective_says_what_it_computes_and_where_it_comes_from():
    known = objectives()
    for kind, cls in known.items():
        assert cls.kind == kind == cls.settings_class().kind
        assert cls.formula
        assert cls.paper


def test_settings_choose_the_kind_of_eta():
    content = {"kind": "debiased", "eta": {"kind": "language_model", "a": 0.1}}
    objective = build_objective(loss_settings(content, "run.yaml"))
    assert isinstance(objective, DebiasedContrastive)
    assert objective.settings.eta == LanguageModelEta(a=0.1, k=0.35)
    assert objective.requires == {"log_prob"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"kind": "debiasd"}, ["run.yaml", "loss.kind", "did you mean 'debiased'"]),
        ({}, ["run.yaml", "loss.kind"]),
        ({"kind": "debiased", "etta": {}}, ["run.yaml", "loss.etta", "did you mean 'eta'"]),
        (
            {"kind": "debiased", "eta": {"kind": "constant", "value": 1.0}},
            ["loss.eta", "value", "less than 1", "1.0"],
        ),
        (
            {"kind": "debiased", "eta": {"kind": "constant", "valu": 0.1}},
            ["unknown setting", "valu", "did you mean 'value'"],
        ),
    ],
)
def test_a_wrong_setting_is_one_sentence_naming_the_key(content, words):
    with pytest.raises(UserError) as caught:
        loss_settings(content, "run.yaml")
    for word in words:
        assert word in str(caught.value)


def test_clips_settings_are_clips_own():
    assert CLIP().settings.kind == "clip"
    assert BioViL().settings.kind == "biovil"
