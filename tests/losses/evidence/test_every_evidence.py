"""What holds for every kind of evidence."""

from __future__ import annotations

import doctest
import importlib

import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.losses.anchors import image_anchors, text_anchors
from medclip_debias.losses.objective import describe, loss_settings
from medclip_debias.losses.pair_evidence import build_evidence, evidence_kinds, evidence_settings

EXAMPLES = {
    ", ".join([kind, *(f"{name}={value}" for name, value in example.items())]): (kind, example)
    for kind, cls in evidence_kinds().items()
    for example in cls.examples
}


def made(name):
    kind, example = EXAMPLES[name]
    return build_evidence(evidence_settings({"kind": kind, **example}, "test"))


@pytest.mark.parametrize("name", EXAMPLES)
def test_evidence_lies_between_minus_one_and_one_and_only_at_negatives(name, make_batch):
    batch = make_batch()
    for anchors in (text_anchors(batch), image_anchors(batch)):
        value = made(name)(anchors, batch)
        assert value.shape == anchors.logits.shape
        assert value.dtype == anchors.logits.dtype
        assert (value.abs() <= 1).all()
        assert (value[~anchors.negatives] == 0).all()


@pytest.mark.parametrize("name", EXAMPLES)
def test_evidence_needs_what_it_reads(name, make_batch):
    evidence = made(name)
    for field in evidence.requires:
        batch = make_batch(**{field: None})
        with pytest.raises(ValueError, match=field):
            evidence(text_anchors(batch), batch)


@pytest.mark.parametrize("kind", evidence_kinds())
def test_the_example_in_the_docstring_runs(kind):
    module = importlib.import_module(evidence_kinds()[kind].__module__)
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0
    assert doctest.testmod(module).attempted > 0
    assert any(e["role"] == "evidence" and e["kind"] == kind for e in describe())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"evidence": {"kind": "claim"}}, ["loss.evidence.kind", "did you mean 'claims'"]),
        ({"evidence": 3}, ["loss.evidence.kind", "known kinds of evidence"]),
        ({"evidence": {"kind": "text", "treshold": 1}}, ["loss.evidence.treshold"]),
        ({"core": {"kind": "keyword"}}, ["no contrastive core"]),
        (
            {"core": {"kind": "clip", "negatives": [
                {"kind": "weigh_by_evidence", "evidence": {"kind": "x"}}]}},
            ["loss.core.negatives.0.evidence.kind"],
        ),
        ({"schedule": {"start": 0.5, "end": 0.2}}, ["end 0.2 must be larger than start 0.5"]),
    ],
)  # fmt: skip
def test_a_wrong_entry_is_named_by_its_place(content, words):
    with pytest.raises(UserError) as caught:
        loss_settings({"kind": "multi_positive"} | content, "run.yaml")
    for word in ["run.yaml", *words]:
        assert word in str(caught.value)
