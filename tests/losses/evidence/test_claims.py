"""Evidence from claims, against loops over single claims."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.losses import ContrastiveBatch
from medclip_debias.losses.anchors import image_anchors, text_anchors
from medclip_debias.losses.evidence.claims import Claims, ClaimsSettings, claim_evidence


def one_pair(stated, claims):
    """Evidence of one report and one sentence, in words of the definition."""
    said = [stated[abs(c) - 1] * (1 if c > 0 else -1) for c in claims if c]
    return min(said) / 100 if said else 0.0


reports = st.lists(st.lists(st.integers(-100, 100), min_size=4, max_size=4), min_size=1, max_size=5)
sentences = st.lists(st.lists(st.integers(-4, 4), min_size=3, max_size=3), min_size=1, max_size=5)


@given(stated=reports, claims=sentences)
def test_evidence_of_a_pair_is_the_least_over_the_claims(stated, claims):
    got = claim_evidence(torch.tensor(stated, dtype=torch.int8), torch.tensor(claims))
    expected = torch.tensor([[one_pair(r, s) for s in claims] for r in stated])
    assert torch.allclose(got, expected)


@given(stated=reports, claims=sentences)
def test_a_sentence_turned_round_never_agrees_where_it_did(stated, claims):
    stated, claims = torch.tensor(stated), torch.tensor(claims)
    both = (claim_evidence(stated, claims) > 0) & (claim_evidence(stated, -claims) > 0)
    assert not both.any()


def test_both_directions_read_the_same_pair(make_batch):
    batch = make_batch()
    owners = batch.owners.tolist()
    pair = [
        [one_pair(r, s) for s in batch.claims.tolist()] for r in batch.stated.tolist()
    ]  # [I, T]
    text = Claims()(text_anchors(batch), batch)
    image = Claims()(image_anchors(batch), batch)
    for j in range(8):
        for i in range(6):
            assert text[j, i] == pytest.approx(0 if owners[j] == i else pair[i][j], abs=1e-6)
        for k in range(8):
            expected = 0 if owners[j] == owners[k] else pair[owners[j]][k]
            assert image[j, k] == pytest.approx(expected, abs=1e-6)


def test_dealt_out_evidence_keeps_the_dose_of_every_anchor(make_batch):
    batch = make_batch(3)
    anchors = text_anchors(batch)
    plain = Claims()(anchors, batch)
    dealt = Claims(ClaimsSettings(control="random"))(anchors, batch)
    assert not torch.equal(plain, dealt)
    mine = [sorted(row[mask].tolist()) for row, mask in zip(plain, anchors.negatives, strict=True)]
    theirs = [sorted(row[m].tolist()) for row, m in zip(dealt, anchors.negatives, strict=True)]
    assert mine == theirs
    assert (dealt[~anchors.negatives] == 0).all()


def test_permuted_evidence_is_that_of_other_anchors_and_follows_the_seed(make_batch):
    batch = make_batch(3)
    anchors = image_anchors(batch)
    rows = {tuple(row.tolist()) for row in Claims().values(anchors, batch)}
    permuted = Claims(ClaimsSettings(control="permuted"))
    again = permuted(anchors, batch)
    assert torch.equal(permuted(anchors, batch), again)
    for row in again:
        kept = [(place, value) for place, value in enumerate(row.tolist()) if value]
        assert any(all(abs(other[c] - value) < 1e-6 for c, value in kept) for other in rows)


def test_a_claim_beyond_the_propositions_is_refused():
    with pytest.raises(ValueError, match="claims holds 3, but stated has 2"):
        ContrastiveBatch(
            torch.zeros(1, 1), torch.tensor(1.0), stated=torch.tensor([[0, 100]]),
            claims=torch.tensor([[-3]]),
        )  # fmt: skip
