"""Evidence about pairs, and the positives made of it, against loops over single pairs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.losses.evidence import claim_evidence
from medclip_debias.losses.objective import EVIDENCE, build_objective, loss_settings
from medclip_debias.training.fields import excludes_own_study
from tests.losses.conftest import rows_of

SIDES = ("text_to_image", "image_to_text")
STUDIES = [0, 1, 2, 3, 1, 2]
"""Studies 1 and 2 have two images each, of which the second may have sentences, too."""


def evidence_of(kind, **settings):
    return EVIDENCE.build(EVIDENCE.settings({"kind": kind} | settings, "test"))


def losses_of(batch, kind="multi_positive", **content):
    content = {"threshold": 0.0} | content if kind == "multi_positive" else content
    objective = build_objective(loss_settings({"kind": kind} | content, "test")).double()
    return objective(batch).per_anchor


def claimed(stated, claims):
    """Evidence of one report and one sentence, in words of the definition."""
    values = [stated[abs(c) - 1] * (1 if c > 0 else -1) for c in claims if c]
    return min(values) / 100 if values else 0.0


reports = st.lists(st.lists(st.integers(-100, 100), min_size=4, max_size=4), min_size=1, max_size=5)
sentences = st.lists(st.lists(st.integers(-4, 4), min_size=3, max_size=3), min_size=1, max_size=5)


@given(stated=reports, claims=sentences)
def test_evidence_of_a_pair_is_the_least_over_the_claims(stated, claims):
    expected = torch.tensor([[claimed(r, s) for s in claims] for r in stated])
    stated, claims = torch.tensor(stated, dtype=torch.int8), torch.tensor(claims)
    evidence = claim_evidence(stated, claims)
    assert torch.allclose(evidence, expected)
    # A sentence turned round never agrees where it did.
    assert not ((evidence > 0) & (claim_evidence(stated, -claims) > 0)).any()


def pair_evidence(batch, row):
    """Evidence of the anchor's pairs by column, of the image and the sentence of each."""
    stated, claims = batch["stated"].tolist(), batch["claims"].tolist()
    if len(row.images) == len(stated):  # a sentence and the images
        return {c: claimed(stated[c], claims[row.sentence]) for c in row.others}
    return {c: claimed(stated[row.image], claims[c]) for c in row.others}


def test_controls_keep_the_dose_of_an_anchor_or_of_another_one(make_batch):
    batch = make_batch(3)
    for direction, anchors in zip(SIDES, batch.anchors("symmetric"), strict=True):
        plain = evidence_of("claims")(anchors, batch)
        for row, values in zip(rows_of(batch, direction), plain.tolist(), strict=True):
            expected = pair_evidence(batch, row)
            assert values == pytest.approx([expected.get(c, 0) for c in range(len(values))])
        dealt = evidence_of("claims", control="random")(anchors, batch)
        assert not torch.equal(plain, dealt)
        for values, others, mask in zip(plain, dealt, anchors.negatives, strict=True):
            assert sorted(values[mask].tolist()) == sorted(others[mask].tolist())
        rows = evidence_of("claims").values(anchors, batch).tolist()
        permuted = evidence_of("claims", control="permuted")
        values = permuted(anchors, batch)
        assert torch.equal(permuted(anchors, batch), values)  # by the seed alone
        for row in values.tolist():
            kept = [(place, value) for place, value in enumerate(row) if value]
            assert any(all(abs(other[c] - value) < 1e-6 for c, value in kept) for other in rows)


# ------------------------------------------------------------------------- several positives


def targets_loss(row, evidence, q_of, weight_of=lambda e: 1.0):
    """Definition A of one anchor; ``evidence`` by column of its negatives."""
    q = {row.own: 1.0} | {c: q_of(e) for c, e in evidence.items()}
    weights = {row.own: 1.0} | {c: 1.0 if q[c] else weight_of(e) for c, e in evidence.items()}
    log_z = math.log(sum(w * math.exp(row.logits[c]) for c, w in weights.items()))
    return sum(share * (log_z - row.logits[c]) for c, share in q.items()) / sum(q.values())


HARD = {"kind": "weigh_by_evidence", "agree": 0.0, "contradict": 3.0, "unknown": 0.5}
TARGETS = {
    "uniform": ({}, lambda e: float(e > 0), lambda e: 1.0),
    "confidence": (
        {"weigh": "confidence", "threshold": 0.2, "prior": 0.1},
        lambda e: e if e > 0.2 else 0.1 if e == 0 else 0.0,
        lambda e: 1.0,
    ),
    "weighted": (
        {"core": {"negatives": [HARD]}},
        lambda e: float(e > 0),
        lambda e: 0.5 + 2.5 * max(-e, 0),
    ),
}


@pytest.mark.parametrize("case", TARGETS)
@pytest.mark.parametrize("direction", SIDES)
def test_multi_positive_is_definition_a_pair_by_pair(make_batch, case, direction):
    content, q_of, weight_of = TARGETS[case]
    core = {"kind": "infonce", "direction": direction} | content.get("core", {})
    for seed in range(3):
        batch = make_batch(seed)
        losses = losses_of(batch, **content | {"core": core})
        expected = [
            targets_loss(row, pair_evidence(batch, row), q_of, weight_of)
            for row in rows_of(batch, direction)
        ]
        # evidence is in hundredths of float32
        assert losses.tolist() == pytest.approx(expected, abs=1e-10 if case == "uniform" else 1e-6)


def test_the_sigmoid_form_sums_yes_and_no_over_pairs(make_batch):
    batch = make_batch(2)
    losses = losses_of(batch, core={"kind": "siglip", "initial_bias": -1.5})
    for row in rows_of(batch, "text_to_image"):
        evidence = pair_evidence(batch, row) | {row.own: 1.0}
        expected = sum(
            math.log1p(math.exp((1.5 - row.logits[c]) if e > 0 else (row.logits[c] - 1.5)))
            for c, e in evidence.items()
        )
        assert losses[row.sentence].item() == pytest.approx(expected)


def test_weight_mixes_core_and_targets_and_the_schedule_fades_it(make_batch):
    batch, half = make_batch(done=0.25), {"end": 0.5, "shape": "linear"}
    core, clip = losses_of(batch, kind="clip"), {"kind": "clip"}
    targets = losses_of(batch, core=clip)
    mixed = losses_of(batch, core=clip, weight=0.3)
    torch.testing.assert_close(mixed, 0.7 * core + 0.3 * targets)
    faded = losses_of(batch, core=clip, schedule=half)
    torch.testing.assert_close(faded, 0.5 * core + 0.5 * targets)
    late = losses_of(make_batch(done=0.6), core=clip, schedule=half)
    torch.testing.assert_close(late, core)


@pytest.mark.parametrize("kind", ["infonce", "clip", "siglip"])
def test_without_agreement_or_a_second_image_of_a_study_it_is_its_core(kind, make_batch):
    batch = make_batch(stated=torch.zeros(6, 3, dtype=torch.int8), study_of_image=torch.arange(6))
    core = losses_of(batch, kind=kind)
    for evidence in ("claims", "study"):
        losses = losses_of(batch, core={"kind": kind}, evidence={"kind": evidence})
        torch.testing.assert_close(losses, core)


# ------------------------------------------------------------------- several images of a study


def several(make_batch, draw=0, **changes):
    return make_batch(draw, study_of_image=torch.tensor(STUDIES), **changes)


def of_own_study(row):
    """Columns of the negatives that are of the anchor's study."""
    return [c for c in row.others if STUDIES[row.images[c]] == STUDIES[row.image]]


@pytest.mark.parametrize("control", ["none", "random", "permuted"])
@pytest.mark.parametrize("kind", EVIDENCE.all())
def test_every_kind_finds_the_own_study_and_no_control_deals_it_away(kind, control, make_batch):
    batch, single = several(make_batch), make_batch(study_of_image=None)
    evidence = evidence_of(kind, control=control)
    sets = zip(batch.anchors("symmetric"), single.anchors("symmetric"), SIDES, strict=True)
    for anchors, alone, direction in sets:
        value = evidence(anchors, batch)
        own = torch.zeros_like(anchors.negatives)
        for j, row in enumerate(rows_of(batch, direction)):
            own[j, of_own_study(row)] = True
        assert (value[own] == 1).all()
        assert own.any()
        if kind in ("claims", "known", "label") and control == "none":
            others = anchors.negatives & ~own
            assert torch.equal(value[others], evidence(alone, single)[others])
        if kind == "study":
            assert (value[~own] == 0).all()


@pytest.mark.parametrize("direction", SIDES)
@pytest.mark.parametrize("draw", range(2))
def test_the_images_of_a_study_are_positives_pair_by_pair(direction, draw, make_batch):
    """Definition A with P the study's images (for an image anchor, also its other sentences)."""
    batch = several(make_batch, draw)
    core = {"kind": "infonce", "direction": direction}
    expected = [
        targets_loss(row, {c: float(c in of_own_study(row)) for c in row.others}, lambda e: e)
        for row in rows_of(batch, direction)
    ]
    losses = losses_of(batch, core=core, evidence={"kind": "study"})
    assert losses.tolist() == pytest.approx(expected, abs=1e-10)


WEIGH = {"kind": "weigh_by_evidence", "evidence": {"kind": "study"}}
EXCLUDING = [
    {"kind": "infonce", "negatives": [{"kind": "mask_same_study"}]},
    {"kind": "infonce", "negatives": [WEIGH]},
    {"kind": "debiased", "eta": {"kind": "constant", "value": 0.0}, "positives": "study"},
]


@pytest.mark.parametrize("content", EXCLUDING, ids=["mask", "evidence", "debiased"])
def test_infonce_that_leaves_the_own_study_out_equals_a_loop(content, make_batch):
    batch = several(make_batch, sample_ids=torch.tensor(STUDIES))
    expected = [
        targets_loss(row, {c: 0.0 for c in row.others if c not in of_own_study(row)}, float)
        for row in rows_of(batch, "text_to_image")
    ]
    assert losses_of(batch, **content).tolist() == pytest.approx(expected)
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
