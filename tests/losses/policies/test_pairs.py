"""Policies by labels, text, study, tables and evidence, against loops over single pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.losses import ContrastiveBatch
from medclip_debias.losses.evidence import EVIDENCE
from medclip_debias.losses.labels import jaccard, label_sets
from medclip_debias.losses.objective import POLICIES
from medclip_debias.losses.pairs import between_texts


def policy(kind, **settings):
    return POLICIES.build(POLICIES.settings({"kind": kind} | settings, "test"))


def weights_of(anchors):
    """Weights in the sum over the candidates ``[A, C]``: None stands for 1 on every negative."""
    weights = anchors.negatives if anchors.weights is None else anchors.weights
    return weights.to(anchors.logits.dtype)


def pairs(anchors, batch):
    """(anchor, candidate, sentence, image of the anchor, image and sentences of the candidate)."""
    owners = batch.owners.tolist()
    for j, c in anchors.negatives.nonzero().tolist():
        if anchors.side == "text":
            yield j, c, owners[j], c, [n for n, owner in enumerate(owners) if owner == c]
        else:
            yield j, c, owners[j], owners[c], [c]


@pytest.mark.parametrize("uncertain", ["as_negative", "as_positive", "ignore"])
@pytest.mark.parametrize("match", ["shared", "equal"])
@pytest.mark.parametrize("draw", range(3))
def test_remove_by_label_is_what_the_label_sets_say(make_batch, uncertain, match, draw):
    batch = make_batch(draw)
    remove = policy("remove_by_label", match=match, uncertain=uncertain)
    for anchors in batch.anchors("symmetric"):
        weights = weights_of(remove.apply_to(anchors, batch))
        for j, c, mine, theirs, _ in pairs(anchors, batch):
            values = []
            for image in (mine, theirs):
                row = {}
                for name, value in zip(batch["label_names"], batch["labels"][image], strict=True):
                    number = value.item()
                    if name == "Fracture":  # not one of the five
                        continue
                    if number == -1 and uncertain == "ignore":
                        continue
                    row[name] = number == 1 or (number == -1 and uncertain == "as_positive")
                values.append(row)
            common = values[0].keys() & values[1].keys()
            if match == "shared":
                alike = any(values[0][n] and values[1][n] for n in common)
            else:
                alike = bool(common) and all(values[0][n] == values[1][n] for n in common)
            assert weights[j, c].item() == (0 if alike else 1)


def test_a_study_without_any_label_is_never_taken_for_alike():
    blank = torch.tensor([[torch.nan, torch.nan], [torch.nan, torch.nan], [0, torch.nan]])
    batch = ContrastiveBatch(torch.zeros(3, 3), 1.0, labels=blank)
    (anchors,) = batch.anchors("text_to_image")
    kept = policy("remove_by_label", match="equal").apply_to(anchors, batch)
    assert kept.negatives.sum() == 6


def test_a_label_that_the_data_lacks_is_named(make_batch):
    batch = make_batch()
    with pytest.raises(UserError, match="'Hernia'"):
        policy("remove_by_label", labels=["Hernia"])(batch.anchors("text_to_image")[0], batch)


def test_the_jaccard_index_counts_shared_labels(make_batch):
    batch = make_batch(2)
    names = batch["label_names"]
    similarity = jaccard(*label_sets(batch, names, "as_negative"))
    for i in range(6):
        for k in range(6):
            a = {n for n, v in zip(names, batch["labels"][i], strict=True) if v == 1}
            b = {n for n, v in zip(names, batch["labels"][k], strict=True) if v == 1}
            expected = 1.0 if not a | b else len(a & b) / len(a | b)
            assert similarity[i, k].item() == pytest.approx(expected)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("draw", range(3))
def test_text_policies_weigh_by_the_most_similar_sentence(make_batch, draw, keep):
    batch = make_batch(draw)
    made = {
        "remove": policy("remove_by_text", threshold=0.3, keep_mass=keep),
        "reweight": policy("reweight_by_text", beta=2.0, keep_mass=keep),
    }
    for anchors in batch.anchors("symmetric"):
        expected = {name: np.zeros(anchors.logits.shape) for name in made}
        for j, c, _, _, sentences in pairs(anchors, batch):
            cosine = max(batch["text_similarity"][j, n].item() for n in sentences)
            expected["remove"][j, c] = cosine <= 0.3
            expected["reweight"][j, c] = math.exp(-2 * cosine)
        for name, wanted in expected.items():
            if keep:
                total = wanted.sum(axis=1, keepdims=True)
                count = anchors.negatives.sum(dim=1, keepdim=True).numpy()
                wanted = wanted * count / np.where(total > 0, total, 1)
            found = weights_of(made[name].apply_to(anchors, batch)).numpy()
            np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_resampling_draws_by_its_probabilities_and_depends_on_the_seed_alone(make_batch):
    batch = make_batch(0)
    (anchors,) = batch.anchors("text_to_image")
    resample = policy("resample_by_text", share=0.2, beta=3.0)
    counts, draws = torch.zeros(8, 6, dtype=torch.float64), 4000
    for seed in range(draws):
        batch.fields["seed"] = seed
        after = resample.apply_to(anchors, batch)
        assert (after.negatives.sum(dim=1) == 1).all()  # ceil(0.2 x 5)
        counts += after.negatives
    cosines = between_texts(batch["text_similarity"], anchors, batch)
    expected = torch.softmax((-3 * cosines).masked_fill(~anchors.negatives, -torch.inf), dim=1)
    # Five standard errors of a share.
    error = 5 * (expected * (1 - expected) / draws).sqrt() + 1e-12
    assert ((counts / draws - expected).abs() <= error).all()
    torch.testing.assert_close(resample.apply_to(anchors, batch).weights, after.weights)
    torch.testing.assert_close(after.mass, anchors.mass)
    everything = policy("resample_by_text", share=1).apply_to(anchors, batch)
    assert torch.equal(everything.negatives, anchors.negatives)


def test_same_study_identical_text_and_known_agreement_are_not_pushed_apart(make_batch):
    batch = make_batch(1)
    texts = batch["text_ids"].tolist()
    for anchors in batch.anchors("symmetric"):
        study, text, known = (
            weights_of(policy(kind).apply_to(anchors, batch))
            for kind in ("mask_same_study", "mask_identical_text", "remove_known")
        )
        for j, c, mine, theirs, sentences in pairs(anchors, batch):
            assert study[j, c] == (batch["sample_ids"][mine] != batch["sample_ids"][theirs])
            assert text[j, c] == all(texts[j] != texts[n] for n in sentences)
            image, sentence = (theirs, j) if anchors.side == "text" else (mine, c)
            assert known[j, c] == (not batch["agreement"][image, texts[sentence]])
        for weights in (study, text, known):  # some are masked, and some are not
            assert 0 < (weights == 0)[anchors.negatives].sum() < anchors.negatives.sum()


def test_a_weight_lies_between_that_of_unknown_and_of_its_kind(make_batch):
    batch = make_batch(4)
    claims = EVIDENCE.build(EVIDENCE.settings({"kind": "claims"}, "test"))
    weigh = policy("weigh_by_evidence", agree=0.2, unknown=0.6, contradict=3.0)
    for anchors in batch.anchors("symmetric"):
        evidence = claims(anchors, batch)
        weights = weigh.apply_to(anchors, batch).weights
        for j, c in anchors.negatives.nonzero().tolist():
            e = float(evidence[j, c])
            expected = 0.6 + max(e, 0) * (0.2 - 0.6) + max(-e, 0) * (3.0 - 0.6)
            assert abs(float(weights[j, c]) - expected) < 1e-6
        kept = policy("weigh_by_evidence").apply_to(anchors, batch).negatives
        assert torch.equal(kept, anchors.negatives & (evidence < 1))


def test_a_margin_is_added_to_contradicting_pairs_alone(make_batch):
    batch = make_batch(5)
    claims = EVIDENCE.build(EVIDENCE.settings({"kind": "claims"}, "test"))
    (anchors,) = batch.anchors("text_to_image")
    after = policy("weigh_by_evidence", margin=0.2).apply_to(anchors, batch)
    contradicting = (-claims(anchors, batch)).clamp(min=0)
    assert torch.equal(after.logits, anchors.logits + batch.scale * 0.2 * contradicting)
    assert torch.equal(after.positive, anchors.positive)


def test_a_policy_fades_by_its_schedule(make_batch):
    remove = {"kind": "remove_by_text", "threshold": 0.3}
    fading = policy(**remove, schedule={"end": 0.5, "shape": "linear"})
    batch = make_batch(done=0.25)
    (anchors,) = batch.anchors("text_to_image")
    removed = anchors.negatives & ~policy(**remove).apply_to(anchors, batch).negatives
    weights = fading.apply_to(anchors, batch).weights
    assert removed.any()
    assert torch.allclose(weights[removed], torch.tensor(0.5, dtype=torch.float64))
    assert torch.allclose(weights[anchors.negatives & ~removed], torch.ones(1).double())
    assert fading.apply_to(anchors, make_batch(done=0.5)) is anchors
