"""Evidence about pairs, from claims and from the own study, against loops over single pairs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.losses.evidence import EVIDENCE, claim_evidence
from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.training.fields import excludes_own_study

STUDIES = [0, 1, 2, 3, 1, 2]
"""Studies 1 and 2 have two images each, of which the second may have sentences, too."""


def made(kind, **settings):
    return EVIDENCE.build(EVIDENCE.settings({"kind": kind} | settings, "test"))


def objective(**content):
    return build_objective(loss_settings(content, "test")).double()


def one_pair(stated, claims):
    """Evidence of one report and one sentence, in words of the definition."""
    values = [stated[abs(c) - 1] * (1 if c > 0 else -1) for c in claims if c]
    return min(values) / 100 if values else 0.0


reports = st.lists(st.lists(st.integers(-100, 100), min_size=4, max_size=4), min_size=1, max_size=5)
sentences = st.lists(st.lists(st.integers(-4, 4), min_size=3, max_size=3), min_size=1, max_size=5)


@given(stated=reports, claims=sentences)
def test_evidence_of_a_pair_is_the_least_over_the_claims(stated, claims):
    expected = torch.tensor([[one_pair(r, s) for s in claims] for r in stated])
    stated, claims = torch.tensor(stated, dtype=torch.int8), torch.tensor(claims)
    found = claim_evidence(stated, claims)
    assert torch.allclose(found, expected)
    # A sentence turned round never agrees where it did.
    assert not ((found > 0) & (claim_evidence(stated, -claims) > 0)).any()


def test_both_directions_read_the_same_pair(make_batch):
    batch = make_batch()
    owners = batch.owners.tolist()
    pair = [[one_pair(r, s) for s in batch["claims"].tolist()] for r in batch["stated"].tolist()]
    text, image = (made("claims")(anchors, batch) for anchors in batch.anchors("symmetric"))
    for j in range(8):
        for i in range(6):
            assert text[j, i] == pytest.approx(0 if owners[j] == i else pair[i][j], abs=1e-6)
        for k in range(8):
            expected = 0 if owners[j] == owners[k] else pair[owners[j]][k]
            assert image[j, k] == pytest.approx(expected, abs=1e-6)


def test_controls_keep_the_dose_of_an_anchor_or_of_another_one(make_batch):
    batch = make_batch(3)
    for anchors in batch.anchors("symmetric"):
        plain = made("claims")(anchors, batch)
        dealt = made("claims", control="random")(anchors, batch)
        assert not torch.equal(plain, dealt)
        for values, others, mask in zip(plain, dealt, anchors.negatives, strict=True):
            assert sorted(values[mask].tolist()) == sorted(others[mask].tolist())
        assert (dealt[~anchors.negatives] == 0).all()
        rows = made("claims").values(anchors, batch).tolist()
        permuted = made("claims", control="permuted")
        found = permuted(anchors, batch)
        assert torch.equal(permuted(anchors, batch), found)  # by the seed alone
        for row in found.tolist():
            kept = [(place, value) for place, value in enumerate(row) if value]
            assert any(all(abs(other[c] - value) < 1e-6 for c, value in kept) for other in rows)


# ------------------------------------------------------------------- several images of a study


def several(make_batch, draw=0, **changes):
    return make_batch(draw, study_of_image=torch.tensor(STUDIES), **changes)


def own_study(batch, anchors):
    """``[A, C]`` by a loop."""
    own = torch.zeros(anchors.logits.shape, dtype=torch.bool)
    for a, row in enumerate(anchors.rows.tolist()):
        for c, column in enumerate(range(anchors.logits.shape[1])):
            image = column if anchors.side == "text" else int(batch.owners[column])
            own[a, c] = STUDIES[int(batch.owners[row])] == STUDIES[image]
    return own


@pytest.mark.parametrize("control", ["none", "random", "permuted"])
@pytest.mark.parametrize("kind", EVIDENCE.all())
def test_every_kind_finds_the_own_study_and_no_control_deals_it_away(kind, control, make_batch):
    batch, single = several(make_batch), make_batch(study_of_image=None)
    evidence = made(kind, control=control)
    for anchors, alone in zip(*(b.anchors("symmetric") for b in (batch, single)), strict=True):
        value, own = evidence(anchors, batch), own_study(batch, anchors)
        assert (value[own & anchors.negatives] == 1).all()
        assert (own & anchors.negatives).any()
        if kind in ("claims", "known", "label") and control == "none":
            others = anchors.negatives & ~own
            assert torch.equal(value[others], evidence(alone, single)[others])
        if kind == "study":
            assert (value[~own] == 0).all()


@pytest.mark.parametrize("direction", ["text_to_image", "image_to_text"])
@pytest.mark.parametrize("draw", range(2))
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


def test_with_one_image_a_study_it_is_its_core(make_batch):
    batch = make_batch(study_of_image=torch.arange(6))
    for kind in ("infonce", "clip", "siglip"):
        got = objective(kind="multi_positive", evidence={"kind": "study"}, core={"kind": kind})
        assert torch.allclose(got(batch).per_anchor, objective(kind=kind)(batch).per_anchor)


WEIGH = {"kind": "weigh_by_evidence", "evidence": {"kind": "study"}}
EXCLUDING = [
    {"kind": "infonce", "negatives": [{"kind": "mask_same_study"}]},
    {"kind": "infonce", "negatives": [WEIGH]},
    {"kind": "debiased", "eta": {"kind": "constant", "value": 0.0}, "positives": "study"},
]


@pytest.mark.parametrize("content", EXCLUDING, ids=["mask", "evidence", "debiased"])
def test_infonce_that_leaves_the_own_study_out_equals_a_loop(content, make_batch):
    batch = several(make_batch, sample_ids=torch.tensor(STUDIES))
    got = objective(**content)(batch).per_anchor
    scale = batch.scale.item()
    for j, own in enumerate(batch.owners.tolist()):
        rest = [i for i in range(6) if i == own or STUDIES[i] != STUDIES[own]]
        total = math.log(sum(math.exp(scale * batch.similarity[i, j].item()) for i in rest))
        assert got[j].item() == pytest.approx(total - scale * batch.similarity[own, j].item())
    assert excludes_own_study(loss_settings(content, "test"))


@pytest.mark.parametrize(
    ("content", "excludes"),
    [
        ({"kind": "infonce"}, False),
        ({"kind": "infonce", "negatives": [{"kind": "fnc"}]}, False),
        ({"kind": "multi_positive"}, True),
        ({"kind": "multi_positive", "weight": 0.5}, False),
        ({"kind": "multi_positive", "weight": 0.5, "core": EXCLUDING[0]}, True),
        ({"kind": "multi_positive", "schedule": {"end": 0.5}}, False),
        ({"kind": "keyword", "core": EXCLUDING[2]}, True),
    ],
)
def test_it_is_known_which_losses_push_views_of_a_study_apart(content, excludes):
    assert excludes_own_study(loss_settings(content, "test")) is excludes
