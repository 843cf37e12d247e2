"""A rule of suppression: what it withholds, how it is kept, and what cannot be used."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.grounding.absent import AbsentFindings
from medclip_debias.grounding.regions import boxes_of_share, threshold_regions
from medclip_debias.grounding.settings import KINDS, SuppressionRule
from medclip_debias.grounding.suppression import (
    Evidence,
    Suppressor,
    Verdict,
    judge,
    read_rule,
    save_rule,
)

TEXTS = ["Left pleural effusion.", "No pneumothorax.", "Right lung."]


@pytest.fixture(scope="module")
def seen(model):
    pixels = torch.from_numpy(np.random.default_rng(1).integers(0, 255, (2, 96, 96), np.uint8))
    with torch.inference_mode():
        return model.encode_images(pixels)


def test_words_come_first_then_the_threshold_and_a_tie_is_kept():
    rule = SuppressionRule(evidence="score", threshold=0.2, slope=3.0, intercept=-0.5)
    assert judge(rule, 0.9, True) == Verdict(False, "words", 0.9, 0.0)
    at, below = judge(rule, 0.2, False), judge(rule, np.nextafter(0.2, 0), False)
    assert (at.there, at.why) == (True, "")
    assert (below.there, below.why) == (False, "image")
    assert at.probability == pytest.approx(1 / (1 + np.exp(-(3 * 0.2 - 0.5))))
    assert judge(SuppressionRule(), -9.0, False) == Verdict(True, "", None, 1.0)


def test_each_kind_of_evidence_is_its_definition(model, seen):
    with torch.inference_mode():
        vectors, denials = (
            model.encode_sentences(t) for t in (TEXTS, ["No pleural effusion.", "x.", "y."])
        )
        scores, against = (model.score(seen, v).numpy().astype(float) for v in (vectors, denials))
        regions = model.region_scores(seen, vectors).numpy()
    found = Evidence(model, KINDS).of(seen, vectors, denials)
    reference = [one.reference for one in AbsentFindings(model).of(seen)]
    np.testing.assert_allclose(found["score"], scores)
    np.testing.assert_allclose(found["negated"], scores - against, atol=1e-7)
    np.testing.assert_allclose(found["peak"], regions.max(axis=2) - np.array(reference)[:, None])
    rule = SuppressionRule(evidence="offset", level=tuple([0.1] * model.dim), level_constant=0.2)
    levels = vectors.numpy().astype(float).sum(axis=1) * 0.1 + 0.2
    verdicts = Suppressor(rule, model, TEXTS).of(seen)
    told = [[one.evidence for one in own] for own in verdicts]
    np.testing.assert_allclose(told, scores - levels, atol=1e-6)
    assert [one.why for one in verdicts[0]][1] == "words"


def test_boxes_of_a_sentence_are_none_or_ordered_by_their_peaks():
    heatmap = np.array([[0.0, 0.5, 0.0, 1.0], [0.0, 0.6, 0.0, 0.0], [0.0, 0.0, 0.0, np.nan]])
    sure = Verdict(True, "", 1.0, 0.8)
    found = boxes_of_share(heatmap, 0.5, sure)
    assert [one.box for one in found] == [(3.0, 0.0, 1.0, 1.0), (1.0, 0.0, 1.0, 2.0)]
    assert [one.confidence for one in found] == pytest.approx([0.8, 0.8 * 0.6])
    assert boxes_of_share(heatmap, 0.5, Verdict(False, "image", -1.0, 0.1)) == []
    plain = boxes_of_share(heatmap, 0.5)
    assert {one.box for one in plain} == {one.box for one in threshold_regions(heatmap, 0.5)}
    assert all(one.confidence is None for one in plain)
    assert boxes_of_share(np.zeros((3, 4)), 0.5, sure) == []  # points nowhere
    with pytest.raises(UserError, match="share"):
        boxes_of_share(heatmap, 0.0)


def test_a_rule_is_read_as_it_was_kept_and_others_are_refused(model, tmp_path):
    kept = {"level": (0.0,) * model.dim, "model_hash": model.content_hash, "chosen": {"split": "x"}}
    rule = SuppressionRule(evidence="offset", threshold=0.1, **kept)
    with pytest.raises(UserError, match=r"suppression.json: is missing.*evaluate suppression"):
        read_rule(tmp_path, model)
    save_rule(tmp_path, rule)
    assert read_rule(tmp_path, model) == rule
    path = tmp_path / "suppression.json"
    good = json.loads(path.read_text())
    for content, words in (
        (good | {"model_hash": "0" * 16}, "other weights"),
        (good | {"level": [0.0]}, "1 numbers"),
        (good | {"threshold": "high"}, "threshold"),
        (good | {"format": 2}, "format"),
        ([], "not a JSON object"),
    ):
        path.write_text(json.dumps(content))
        with pytest.raises(UserError, match=words):
            read_rule(tmp_path, model)
