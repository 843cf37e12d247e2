"""Evidence about pairs: claims, controls, and the own study."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.losses.evidence import claim_evidence
from medclip_debias.losses.objective import EVIDENCE, loss_settings
from medclip_debias.training.fields import excludes_own_study
from tests.losses.reference import claimed

STUDIES = torch.tensor([0, 1, 2, 3, 1, 2])
"""Studies 1 and 2 have two images each, of which the second may have sentences, too."""


def evidence_of(kind, **settings):
    return EVIDENCE.build(EVIDENCE.settings({"kind": kind} | settings, "test"))


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


def test_controls_keep_the_dose_of_an_anchor_or_of_another_one(make_batch):
    batch = make_batch(3)
    for anchors in batch.anchors("symmetric"):
        plain = evidence_of("claims")(anchors, batch)
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


@pytest.mark.parametrize("control", ["none", "random", "permuted"])
@pytest.mark.parametrize("kind", EVIDENCE.all())
def test_every_kind_finds_the_own_study_and_no_control_deals_it_away(kind, control, make_batch):
    batch = make_batch(study_of_image=STUDIES)
    for anchors in batch.anchors("symmetric"):
        value = evidence_of(kind, control=control)(anchors, batch)
        assert value.dtype == anchors.logits.dtype
        assert (value.abs() <= 1).all()
        assert (value[~anchors.negatives] == 0).all()
        same = STUDIES[anchors.images][:, None] == STUDIES[anchors.candidates][None, :]
        own = same & anchors.negatives
        assert own.any()
        assert (value[own] == 1).all()
        assert kind != "study" or (value[~own] == 0).all()


WEIGH = {"kind": "weigh_by_evidence", "evidence": {"kind": "study"}}
EXCLUDING = [
    {"kind": "infonce", "negatives": [{"kind": "mask_same_study"}]},
    {"kind": "infonce", "negatives": [WEIGH]},
    {"kind": "debiased", "eta": {"kind": "constant", "value": 0.0}, "positives": "study"},
]


@pytest.mark.parametrize(
    ("content", "excludes"),
    [
        *((content, True) for content in EXCLUDING),
        ({"kind": "infonce"}, False),
        ({"kind": "infonce", "negatives": [WEIGH | {"agree": 0.5}]}, False),
        ({"kind": "infonce", "negatives": [WEIGH | {"schedule": {"end": 0.5}}]}, False),
        ({"kind": "multi_positive"}, True),
        ({"kind": "multi_positive", "weight": 0.5}, False),
        ({"kind": "multi_positive", "weight": 0.5, "core": EXCLUDING[0]}, True),
        ({"kind": "keyword", "core": EXCLUDING[2]}, True),
    ],
)
def test_it_is_known_which_losses_push_views_of_a_study_apart(content, excludes):
    assert excludes_own_study(loss_settings(content, "test")) is excludes
