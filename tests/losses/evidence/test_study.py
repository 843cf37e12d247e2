"""Images of one study agree with its sentences, whatever the evidence: against loops over pairs."""

from __future__ import annotations

import math

import pytest
import torch

from medclip_debias.losses.anchors import image_anchors, text_anchors
from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.losses.pair_evidence import build_evidence, evidence_kinds, evidence_settings
from medclip_debias.training.fields import spares_own_study

STUDIES = [0, 1, 2, 3, 1, 2]
"""Studies 1 and 2 have two images each, of which the second may have sentences, too."""


def several(make_batch, draw=0, **changes):
    return make_batch(draw, study_of_image=torch.tensor(STUDIES), **changes)


def objective(**content):
    return build_objective(loss_settings(content, "test")).double()


def own_study(batch, anchors):
    """``[A, C]`` by a loop."""
    found = torch.zeros(anchors.logits.shape, dtype=torch.bool)
    for a, row in enumerate(anchors.rows.tolist()):
        for c, column in enumerate(anchors.columns.tolist()):
            image = column if anchors.side == "text" else int(batch.owners[column])
            found[a, c] = STUDIES[int(batch.owners[row])] == STUDIES[image]
    return found


@pytest.mark.parametrize("control", ["none", "random", "permuted"])
@pytest.mark.parametrize("kind", evidence_kinds())
def test_every_kind_finds_the_own_study_and_no_control_deals_it_away(kind, control, make_batch):
    batch, single = several(make_batch), make_batch(study_of_image=None)
    evidence = build_evidence(evidence_settings({"kind": kind, "control": control}, "test"))
    for make in (text_anchors, image_anchors):
        anchors = make(batch)
        found, own = evidence(anchors, batch), own_study(batch, anchors)
        assert (found[own & anchors.negatives] == 1).all()
        assert (own & anchors.negatives).any()
        if kind in ("claims", "known", "label") and control == "none":
            others = anchors.negatives & ~own
            assert torch.equal(found[others], evidence(make(single), single)[others])
        if kind == "study":
            assert (found[~own] == 0).all()


@pytest.mark.parametrize("direction", ["text_to_image", "image_to_text"])
@pytest.mark.parametrize("draw", range(3))
def test_the_images_of_a_study_are_positives_pair_by_pair(direction, draw, make_batch):
    """Definition A with P the study's images (for an image anchor, also its other sentences)."""
    batch = several(make_batch, draw)
    core = {"kind": "infonce", "direction": direction}
    got = objective(kind="multi_positive", evidence={"kind": "study"}, core=core)(batch)
    scale, expected = batch.scale.item(), []
    owners = batch.owners.tolist()
    for j, own in enumerate(owners):
        if direction == "text_to_image":
            logits = {i: batch.similarity[i, j].item() * scale for i in range(6)}
            positives = [i for i in range(6) if STUDIES[i] == STUDIES[own]]
        else:  # other sentences of the very image are neither
            left = [k for k in range(8) if k == j or owners[k] != own]
            logits = {k: batch.similarity[own, k].item() * scale for k in left}
            positives = [k for k in left if STUDIES[owners[k]] == STUDIES[own]]
        total = math.log(sum(math.exp(value) for value in logits.values()))
        expected.append(sum(total - logits[p] for p in positives) / len(positives))
    assert got.per_anchor.tolist() == pytest.approx(expected, abs=1e-10)
    assert got.diagnostics["positives"] > 1


def test_a_sentence_that_claims_nothing_still_agrees_with_its_study(make_batch):
    nothing = torch.zeros(8, 2, dtype=torch.int64)
    by_claims = objective(kind="multi_positive", evidence={"kind": "claims"})
    by_study = objective(kind="multi_positive", evidence={"kind": "study"})
    batch = several(make_batch, claims=nothing)
    assert torch.equal(by_claims(batch).per_anchor, by_study(batch).per_anchor)


def test_with_one_image_a_study_it_is_its_core(make_batch):
    batch = make_batch(study_of_image=torch.arange(6))
    for kind in ("infonce", "clip", "siglip"):
        got = objective(kind="multi_positive", evidence={"kind": "study"}, core={"kind": kind})
        assert torch.allclose(got(batch).per_anchor, objective(kind=kind)(batch).per_anchor)


@pytest.mark.parametrize(
    "content",
    [
        {"kind": "infonce", "negatives": [{"kind": "mask_same_study"}]},
        {"kind": "infonce", "negatives": [{"kind": "weigh_by_evidence", "evidence": "study"}]},
        {"kind": "debiased", "eta": {"kind": "constant", "value": 0.0}, "positives": "study"},
    ],
    ids=["mask", "evidence", "debiased"],
)
def test_infonce_that_leaves_the_own_study_out_equals_a_loop(content, make_batch):
    for policy in content.get("negatives", []):
        if policy.get("evidence") == "study":
            policy["evidence"] = {"kind": "study"}
    batch = several(make_batch, sample_ids=torch.tensor(STUDIES))
    got = objective(**content)(batch).per_anchor
    scale = batch.scale.item()
    for j, own in enumerate(batch.owners.tolist()):
        rest = [i for i in range(6) if i == own or STUDIES[i] != STUDIES[own]]
        total = math.log(sum(math.exp(scale * batch.similarity[i, j].item()) for i in rest))
        assert got[j].item() == pytest.approx(total - scale * batch.similarity[own, j].item())


@pytest.mark.parametrize(
    ("content", "spares"),
    [
        ({"kind": "infonce"}, False),
        ({"kind": "debiased"}, False),
        ({"kind": "infonce", "negatives": [{"kind": "fnc"}]}, False),
        ({"kind": "infonce", "negatives": [{"kind": "mask_same_study"}]}, True),
        ({"kind": "debiased", "positives": "study"}, True),
        ({"kind": "multi_positive"}, True),
        ({"kind": "multi_positive", "weight": 0.5}, False),
        ({"kind": "multi_positive", "weight": 0.5,
          "core": {"kind": "clip", "negatives": [{"kind": "mask_same_study"}]}}, True),
        ({"kind": "multi_positive", "schedule": {"end": 0.5}}, False),
        ({"kind": "keyword", "core": {"kind": "debiased", "positives": "study"}}, True),
    ],
)  # fmt: skip
def test_it_is_known_which_losses_push_views_of_a_study_apart(content, spares):
    assert spares_own_study(objective(**content)) is spares
