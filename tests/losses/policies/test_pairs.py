"""Policies by labels, text, study, tables and evidence, against loops over single pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.losses import ContrastiveBatch
from medclip_debias.losses.labels import jaccard, label_sets
from medclip_debias.losses.objective import EVIDENCE, POLICIES
from medclip_debias.losses.pairs import between_texts
from tests.losses.conftest import rows_of


def policy(kind, **settings):
    return POLICIES.build(POLICIES.settings({"kind": kind} | settings, "test"))


def pairs(batch, *policies):
    """Row, column and each policy's weight of every negative, from both sides."""
    sides = ("text_to_image", "image_to_text")
    for direction, anchors in zip(sides, batch.anchors("symmetric"), strict=True):
        after = [each.apply_to(anchors, batch) for each in policies]
        weights = [(a.negatives if a.weights is None else a.weights).double() for a in after]
        for j, row in enumerate(rows_of(batch, direction)):
            for c in row.others:
                yield anchors, row, c, *(weight[j, c].item() for weight in weights)


@pytest.mark.parametrize("uncertain", ["as_negative", "as_positive", "ignore"])
@pytest.mark.parametrize("match", ["shared", "equal"])
@pytest.mark.parametrize("draw", range(3))
def test_remove_by_label_is_what_the_label_sets_say(make_batch, uncertain, match, draw):
    batch = make_batch(draw)
    remove = policy("remove_by_label", match=match, uncertain=uncertain)
    names = batch["label_names"][:5]  # a fracture is not one of the five

    def present(image):
        values = dict(zip(names, batch["labels"][image].tolist(), strict=False))
        if uncertain == "ignore":
            values = {name: value for name, value in values.items() if value != -1}
        return {n: v == 1 or (v == -1 and uncertain == "as_positive") for n, v in values.items()}

    for _, row, c, weight in pairs(batch, remove):
        mine, theirs = present(row.image), present(row.images[c])
        both = [(mine[name], theirs[name]) for name in mine.keys() & theirs.keys()]
        if match == "shared":
            alike = any(a and b for a, b in both)
        else:
            alike = bool(both) and all(a == b for a, b in both)
        assert weight == (not alike)


def test_unlabelled_studies_are_not_alike_and_a_label_that_the_data_lacks_is_named(make_batch):
    blank = torch.tensor([[torch.nan, torch.nan], [torch.nan, torch.nan], [0, torch.nan]])
    batch = ContrastiveBatch(torch.zeros(3, 3), 1.0, labels=blank)
    (anchors,) = batch.anchors("text_to_image")
    assert policy("remove_by_label", match="equal").apply_to(anchors, batch).negatives.sum() == 6
    batch = make_batch()
    with pytest.raises(UserError, match="'Hernia'"):
        policy("remove_by_label", labels=["Hernia"])(batch.anchors("text_to_image")[0], batch)


def test_the_jaccard_index_counts_shared_labels(make_batch):
    batch = make_batch(2)
    names = batch["label_names"]
    similarity = jaccard(*label_sets(batch, names, "as_negative"))
    present = [set((labels == 1).nonzero().flatten().tolist()) for labels in batch["labels"]]
    for i, a in enumerate(present):
        for k, b in enumerate(present):
            expected = len(a & b) / len(a | b) if a | b else 1.0
            assert similarity[i, k].item() == pytest.approx(expected)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("draw", range(3))
def test_text_policies_weigh_by_the_most_similar_sentence(make_batch, draw, keep):
    batch = make_batch(draw)
    remove = policy("remove_by_text", threshold=0.3, keep_mass=keep)
    reweight = policy("reweight_by_text", beta=2.0, keep_mass=keep)

    def expected(row):
        cosines = batch["text_similarity"][row.sentence].tolist()
        largest = {c: max(cosines[n] for n in row.sentences[c]) for c in row.others}
        for weights in (
            {c: float(cosine <= 0.3) for c, cosine in largest.items()},
            {c: math.exp(-2 * cosine) for c, cosine in largest.items()},
        ):
            total = sum(weights.values()) or 1.0
            yield {c: w * (len(largest) / total if keep else 1) for c, w in weights.items()}

    for _, row, c, *weights in pairs(batch, remove, reweight):
        assert weights == pytest.approx([each[c] for each in expected(row)], rel=1e-12)


def test_resampling_draws_by_its_probabilities_and_depends_on_the_seed_alone(make_batch):
    batch = make_batch(0)
    (anchors,) = batch.anchors("text_to_image")
    resample = policy("resample_by_text", share=0.2, beta=3.0)
    counts, draws = torch.zeros(8, 6, dtype=torch.float64), 2000
    for seed in range(draws):
        batch.fields["seed"] = seed
        after = resample.apply_to(anchors, batch)
        counts += after.negatives
        assert (after.negatives.sum(dim=1) == 1).all()  # ceil(0.2 x 5)
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
    texts, studies = batch["text_ids"].tolist(), batch["sample_ids"].tolist()
    kinds, all_weights = ("mask_same_study", "mask_identical_text", "remove_known"), []
    for anchors, row, c, *weights in pairs(batch, *map(policy, kinds)):
        image, sentence = (c, row.sentence) if anchors.side == "text" else (row.image, c)
        assert weights == [
            studies[row.image] != studies[row.images[c]],
            all(texts[row.sentence] != texts[n] for n in row.sentences[c]),
            not batch["agreement"][image, texts[sentence]],
        ]
        all_weights.append(weights)
    assert (np.std(all_weights, axis=0) > 0).all()  # some are masked, and some are not


def test_a_weight_lies_between_that_of_unknown_and_of_its_kind(make_batch):
    batch = make_batch(4)
    claims = EVIDENCE.build(EVIDENCE.settings({"kind": "claims"}, "test"))
    weigh = policy("weigh_by_evidence", agree=0.2, unknown=0.6, contradict=3.0)
    for anchors, row, c, weight, plain in pairs(batch, weigh, policy("weigh_by_evidence")):
        e = claims(anchors, batch)[row.sentence, c].item()
        expected = 0.6 + max(e, 0) * (0.2 - 0.6) + max(-e, 0) * (3.0 - 0.6)
        assert weight == pytest.approx(expected, abs=1e-6)
        assert (plain > 0) == (e < 1)
    (anchors,) = batch.anchors("text_to_image")
    after = policy("weigh_by_evidence", margin=0.2).apply_to(anchors, batch)
    contradicting = (-claims(anchors, batch)).clamp(min=0)
    assert torch.equal(after.logits, anchors.logits + batch.scale * 0.2 * contradicting)
    assert torch.equal(after.positive, anchors.positive)


def test_a_policy_fades_by_its_schedule(make_batch):
    remove = {"kind": "remove_by_text", "threshold": 0.3}
    fading = policy(**remove, schedule={"end": 0.5, "shape": "linear"})
    removals = set()
    for _, _, _, faded, whole in pairs(make_batch(done=0.25), fading, policy(**remove)):
        assert faded == 0.5 * whole + 0.5
        removals.add(whole)
    assert removals == {0.0, 1.0}
    late = make_batch(done=0.5)
    (anchors,) = late.anchors("text_to_image")
    assert fading.apply_to(anchors, late) is anchors
