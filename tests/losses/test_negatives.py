"""Weights on negatives, and each policy, against loops over single pairs in float64."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias.errors import UserError
from medclip_debias.losses import (
    ContrastiveBatch,
    DebiasedContrastive,
    DebiasedSettings,
    FalseNegativeCancellation,
    FNCSettings,
    MaskIdenticalText,
    MaskSameStudy,
    NegativePolicy,
    PolicySettings,
    RemoveByLabel,
    RemoveByLabelSettings,
    RemoveByText,
    RemoveByTextSettings,
    RemoveKnown,
    ResampleByText,
    ResampleByTextSettings,
    ReweightByText,
    ReweightByTextSettings,
    TableEta,
)
from medclip_debias.losses.base import image_anchors, text_anchors
from medclip_debias.losses.labels import jaccard, label_sets


class Given(NegativePolicy):
    """Weights that the test gives."""

    kind = "given_by_the_test"
    settings_class = PolicySettings
    formula = paper = "none"

    def forward(self, anchors, batch):
        return self.weights


NegativePolicy.register.pop("given_by_the_test")


def effective(anchors):
    """Weights in the sum over the candidates ``[A, C]``: None stands for 1 on every negative."""
    if anchors.weights is None:
        return anchors.negatives.to(anchors.logits.dtype)
    return anchors.weights


def weighted_loss(logits, scale, own, positives, weights, eta):
    """Equations 6 to 8 with weights and M positives, as printed, one anchor."""
    n = sum(weights)
    neg = sum(w * math.exp(s) for w, s in zip(weights, logits, strict=True))
    v = sum(math.exp(logits[m]) for m in positives) / len(positives)
    pos = math.exp(logits[own])
    if n == 0:
        return 0.0
    ng = max((neg - n * eta * v) / (1 - eta), n * math.exp(-scale))
    return -math.log(pos / (pos + ng))


@pytest.mark.parametrize("positives", ["pair", "study"])
@pytest.mark.parametrize("side", ["text_to_image", "image_to_text"])
@pytest.mark.parametrize("draw", range(4))
def test_weighted_negatives_and_many_positives_are_the_printed_formula(
    make_batch, positives, side, draw
):
    batch = make_batch(draw)
    columns = 6 if side == "text_to_image" else 8
    g = torch.Generator().manual_seed(draw)
    weights = torch.rand(8, columns, generator=g, dtype=torch.float64) * 3
    weights[weights < 0.7] = 0
    weights[5] = 0
    objective = DebiasedContrastive(
        DebiasedSettings(eta=TableEta(), direction=side, positives=positives)
    )
    policy = Given(PolicySettings())
    policy.weights = weights
    objective.policies.append(policy)
    out = objective(batch)
    owners, studies = batch.owners.tolist(), batch.sample_ids.tolist()
    for j, owner in enumerate(owners):
        if side == "text_to_image":
            logits = [3 * batch.similarity[i, j].item() for i in range(6)]
            of, own = list(range(6)), owner
        else:
            logits = [3 * batch.similarity[owner, n].item() for n in range(8)]
            of, own = owners, j
        mine = [c for c in range(columns) if studies[of[c]] == studies[owner]]
        same = mine if positives == "study" else [own]
        excluded = set(same) | {c for c in range(columns) if of[c] == owner}
        row = [0.0 if c in excluded else weights[j, c].item() for c in range(columns)]
        expected = weighted_loss(logits, 3.0, own, same, row, batch.eta[j].item())
        assert out.per_anchor[j].item() == pytest.approx(expected, rel=1e-9, abs=1e-13)
    assert out.per_anchor[5] == 0


def test_one_positive_of_the_study_is_the_plain_loss(make_batch):
    batch = ContrastiveBatch(
        make_batch().similarity[:, 2:8],
        torch.tensor(14.0).double(),
        eta=torch.full((6,), 0.2).double(),
        sample_ids=torch.arange(6),
    )
    one = DebiasedContrastive(DebiasedSettings(eta=TableEta()))(batch)
    many = DebiasedContrastive(DebiasedSettings(eta=TableEta(), positives="study"))(batch)
    torch.testing.assert_close(one.per_anchor, many.per_anchor, rtol=1e-12, atol=1e-14)


def both_sides(batch):
    return [("text", text_anchors(batch)), ("image", image_anchors(batch))]


def pairs(side, anchors, batch):
    """(anchor, candidate, sentence, image of the anchor, images and sentences of candidate)."""
    owners = batch.owners.tolist()
    for j in range(anchors.logits.shape[0]):
        for c in range(anchors.logits.shape[1]):
            if not anchors.negatives[j, c]:
                continue
            if side == "text":
                said = [n for n, owner in enumerate(owners) if owner == c]
                yield j, c, owners[j], c, said
            else:
                yield j, c, owners[j], owners[c], [c]


@pytest.mark.parametrize("uncertain", ["as_negative", "as_positive", "ignore"])
@pytest.mark.parametrize("match", ["shared", "equal"])
@pytest.mark.parametrize("draw", range(6))
def test_remove_by_label_is_what_the_label_sets_say(make_batch, uncertain, match, draw):
    batch = make_batch(draw)
    policy = RemoveByLabel(RemoveByLabelSettings(match=match, uncertain=uncertain))
    for side, anchors in both_sides(batch):
        weights = effective(policy.apply_to(anchors, batch))
        for j, c, mine, theirs, _ in pairs(side, anchors, batch):
            values = []
            for image in (mine, theirs):
                row = {}
                for name, value in zip(batch.label_names, batch.labels[image], strict=True):
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
    nan = float("nan")
    batch = ContrastiveBatch(
        torch.zeros(3, 3),
        torch.tensor(1.0),
        labels=torch.tensor([[nan, nan], [nan, nan], [0, nan]]),
    )
    policy = RemoveByLabel(RemoveByLabelSettings(match="equal"))
    assert policy.apply_to(text_anchors(batch), batch).negatives.sum() == 6


def test_a_label_that_the_data_lacks_is_named(make_batch):
    policy = RemoveByLabel(RemoveByLabelSettings(labels=("Hernia",)))
    batch = make_batch()
    with pytest.raises(UserError, match="'Hernia'"):
        policy.apply_to(text_anchors(batch), batch)


def test_the_jaccard_index_counts_shared_labels(make_batch):
    batch = make_batch(2)
    names = batch.label_names
    similarity = jaccard(*label_sets(batch, names, "as_negative", "test"))
    for i in range(6):
        for k in range(6):
            a = {n for n, v in zip(names, batch.labels[i], strict=True) if v == 1}
            b = {n for n, v in zip(names, batch.labels[k], strict=True) if v == 1}
            expected = 1.0 if not a | b else len(a & b) / len(a | b)
            assert similarity[i, k].item() == pytest.approx(expected)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("draw", range(4))
def test_text_policies_weigh_by_the_most_similar_sentence(make_batch, draw, keep):
    batch = make_batch(draw)
    remove = RemoveByText(RemoveByTextSettings(threshold=0.3, keep_mass=keep))
    reweight = ReweightByText(ReweightByTextSettings(beta=2.0, keep_mass=keep))
    for side, anchors in both_sides(batch):
        expected = {"remove": np.zeros(anchors.logits.shape), "reweight": None}
        expected["reweight"] = np.zeros(anchors.logits.shape)
        for j, c, _, _, said in pairs(side, anchors, batch):
            cosine = max(batch.text_similarity[j, n].item() for n in said)
            expected["remove"][j, c] = cosine <= 0.3
            expected["reweight"][j, c] = math.exp(-2 * cosine)
        for name, policy in (("remove", remove), ("reweight", reweight)):
            wanted = expected[name]
            if keep:
                total = wanted.sum(axis=1, keepdims=True)
                count = anchors.negatives.sum(dim=1, keepdim=True).numpy()
                wanted = wanted * count / np.where(total > 0, total, 1)
            found = effective(policy.apply_to(anchors, batch)).numpy()
            np.testing.assert_allclose(found, wanted, rtol=1e-12)


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**20), alpha=st.floats(0.001, 0.999), images=st.integers(3, 40))
def test_fnc_removes_what_lies_above_the_quantile(seed, alpha, images):
    g = torch.Generator().manual_seed(seed)
    similarity = torch.rand(images, images, generator=g, dtype=torch.float64)
    batch = ContrastiveBatch(similarity, torch.tensor(14.0).double())
    anchors = text_anchors(batch)
    kept = FalseNegativeCancellation(FNCSettings(alpha=alpha)).apply_to(anchors, batch).negatives
    for j in range(images):
        row = np.delete(similarity[:, j].numpy(), j)
        removed = set(np.flatnonzero(~kept[j].numpy())) - {j}
        # numpy's quantile interpolates: exactly the values strictly above it go.
        position = (len(row) - 1) * (1 - alpha)
        if abs(position - round(position)) > 1e-6:
            above = np.flatnonzero(similarity[:, j].numpy() > np.quantile(row, 1 - alpha))
            assert removed == set(above) - {j}
        by_sort = np.argsort(-np.where(np.arange(images) == j, -1, similarity[:, j].numpy()))
        assert removed == set(by_sort[: len(removed)])
        assert len(removed) >= 1


def test_fnc_counts_exactly_also_among_equals():
    batch = ContrastiveBatch(torch.ones(101, 101), torch.tensor(14.0))
    anchors = text_anchors(batch)
    for alpha, removed in ((0, 0), (1e-9, 1), (0.07, 7), (0.5, 50)):
        policy = FalseNegativeCancellation(FNCSettings(alpha=alpha))
        after = policy.apply_to(anchors, batch)
        assert ((anchors.negatives & ~after.negatives).sum(dim=1) == removed).all()
        torch.testing.assert_close(after.mass, torch.full((101,), 100.0))


def test_fnc_waits_for_its_start_and_a_resumed_one_does_not_wait_again():
    batch = ContrastiveBatch(
        torch.rand(8, 8, generator=torch.Generator().manual_seed(0)), torch.tensor(14.0)
    )
    settings = FNCSettings(alpha=0.3, start_step=3)
    policy = FalseNegativeCancellation(settings)
    anchors = text_anchors(batch)

    def removed(one):
        return int((anchors.negatives & ~one.apply_to(anchors, batch).negatives).sum())

    policy.eval()
    assert [removed(policy) for _ in range(4)] == [0] * 4  # looking is not training
    policy.train()
    assert [removed(policy) for _ in range(2)] == [0, 0]
    resumed = FalseNegativeCancellation(settings)
    resumed.load_state_dict(policy.state_dict())
    at_once = removed(FalseNegativeCancellation(FNCSettings(alpha=0.3)))
    assert [removed(resumed) for _ in range(2)] == [0, at_once]
    assert at_once == 8 * 2  # ceil(.3 x 6) of the seven negatives of each


def test_fnc_counts_the_steps_of_each_side(make_batch):
    batch = make_batch(1)
    text, image = batch.anchors("symmetric")
    policy = FalseNegativeCancellation(FNCSettings(alpha=0.3, start_step=1, keep_mass=False))
    for anchors in (text, image):
        assert policy.apply_to(anchors, batch).negatives.equal(anchors.negatives)
    for anchors in (text, image):
        assert not policy.apply_to(anchors, batch).negatives.equal(anchors.negatives)


def test_fnc_can_start_at_an_epoch_once_it_knows_how_long_one_is(make_batch):
    batch = make_batch(1)
    anchors = text_anchors(batch)
    policy = FalseNegativeCancellation(FNCSettings(alpha=0.3, start_epoch=2, keep_mass=False))
    with pytest.raises(ValueError, match="'fnc' has a start_epoch"):
        policy.apply_to(anchors, batch)
    policy.begin(samples=10, steps_per_epoch=2)
    kept = [policy.apply_to(anchors, batch).negatives.equal(anchors.negatives) for _ in range(6)]
    assert kept == [True] * 4 + [False] * 2
    with pytest.raises(ValueError, match="start_step or start_epoch, not both"):
        FNCSettings(start_epoch=1, start_step=5)


def test_same_study_and_identical_text_are_not_pushed_apart(make_batch):
    batch = make_batch(1)
    for side, anchors in both_sides(batch):
        study = effective(MaskSameStudy().apply_to(anchors, batch))
        text = effective(MaskIdenticalText().apply_to(anchors, batch))
        for j, c, mine, theirs, said in pairs(side, anchors, batch):
            assert study[j, c] == (batch.sample_ids[mine] != batch.sample_ids[theirs])
            assert text[j, c] == all(batch.text_ids[j] != batch.text_ids[n] for n in said)
    # The tests above would pass on data where nothing is masked.
    assert (study == 0).sum() > (~anchors.negatives).sum()
    assert (text == 0).sum() > (~anchors.negatives).sum()


def test_resampling_draws_by_its_probabilities_and_depends_on_the_seed_alone(make_batch):
    batch = make_batch(0)
    anchors = text_anchors(batch)
    policy = ResampleByText(ResampleByTextSettings(share=0.2, beta=3.0))
    counts = torch.zeros(8, 6, dtype=torch.float64)
    draws = 4000
    for seed in range(draws):
        object.__setattr__(batch, "seed", seed)
        after = policy.apply_to(anchors, batch)
        assert (after.negatives.sum(dim=1) == 1).all()  # ceil(0.2 x 5)
        counts += after.negatives
    cosines = anchors.between_texts(batch.text_similarity, batch)
    expected = torch.softmax((-3 * cosines).masked_fill(~anchors.negatives, -torch.inf), dim=1)
    # Five standard errors of a share.
    error = 5 * (expected * (1 - expected) / draws).sqrt() + 1e-12
    assert ((counts / draws - expected).abs() <= error).all()
    again = policy.apply_to(anchors, batch)
    torch.testing.assert_close(again.weights, after.weights)
    torch.testing.assert_close(after.mass, anchors.mass)


def test_without_preference_resampling_is_uniform_and_all_is_all(make_batch):
    batch = make_batch(0)
    anchors = text_anchors(batch)
    everything = ResampleByText(ResampleByTextSettings(share=1)).apply_to(anchors, batch)
    assert torch.equal(everything.negatives, anchors.negatives)
    assert (everything.weights[anchors.negatives] == 1).all()


def test_each_policy_sees_what_the_one_before_has_left(make_batch):
    batch = make_batch(0)
    anchors = text_anchors(batch)
    top = FalseNegativeCancellation(FNCSettings(alpha=1e-9, keep_mass=False))
    once = top.apply_to(anchors, batch)
    twice = top.apply_to(once, batch)
    for j in range(8):
        order = anchors.logits[j].masked_fill(~anchors.negatives[j], -torch.inf).argsort()
        gone = set(np.flatnonzero(anchors.negatives[j] & ~twice.negatives[j]).tolist())
        assert gone == set(order[-2:].tolist())
    assert (twice.mass == anchors.mass - 2).all()


def test_no_policy_carries_gradient(make_batch):
    similarity = make_batch().similarity.clone().requires_grad_()
    batch = make_batch(similarity=similarity)
    after = FalseNegativeCancellation().apply_to(text_anchors(batch), batch)
    assert not after.weights.requires_grad


def several_images():
    """4 images, the first three of one study; its sentences belong to images 0 and 2."""
    similarity = torch.tensor(
        [[0.9, 0.1, 0.2], [0.8, 0.3, 0.1], [0.7, 0.9, 0.3], [0.6, 0.2, 0.9]], dtype=torch.float64
    )
    studies = torch.tensor([5, 5, 5, 6])
    return ContrastiveBatch(
        similarity,
        torch.tensor(3.0, dtype=torch.float64),
        torch.tensor([0, 2, 3]),
        studies,
        sample_ids=studies,
        text_ids=torch.tensor([1, 2, 1]),
        text_similarity=torch.eye(3, dtype=torch.float64),
        keywords=torch.tensor([1, 2, 3]),
    )


def test_an_image_is_known_by_every_sentence_of_its_study():
    batch = several_images()
    (anchors,) = batch.anchors("text_to_image")
    matrix = torch.arange(1.0, 10.0, dtype=torch.float64).view(3, 3) / 10
    expected = [[0.2, 0.2, 0.2, 0.3], [0.5, 0.5, 0.5, 0.6], [0.8, 0.8, 0.8, 0.9]]
    assert anchors.between_texts(matrix, batch).tolist() == expected
    # Sentence 2 is literally what the report of images 0 to 2 says, whichever one owns it.
    kept = MaskIdenticalText().apply_to(anchors, batch)
    assert kept.negatives[2].tolist() == [False] * 4


def test_a_policy_does_not_spend_its_removals_on_further_positives():
    batch = several_images()
    fnc = FNCSettings(alpha=0.01, keep_mass=False)
    settings = DebiasedSettings(eta=TableEta(), positives="study", negatives=(fnc,))
    batch = replace(batch, eta=torch.zeros(3, dtype=torch.float64))
    (anchors,), _ = DebiasedContrastive(settings).anchors(batch)
    # The most similar other image of sentence 0 is of its own study; the only negative goes.
    assert not anchors.negatives[0].any()
    # Of sentence 2 the three images of the other study are negatives: the most similar goes.
    assert anchors.negatives[2].tolist() == [True, True, False, False]


def test_known_agreement_is_removed_pair_by_pair(make_batch):
    batch = make_batch()
    agree, texts, owners = batch.agreement, batch.text_ids.tolist(), batch.owners.tolist()
    policy = RemoveKnown()
    text, image = text_anchors(batch), image_anchors(batch)
    kept = policy.apply_to(text, batch).negatives
    for j in range(8):
        for i in range(6):
            expected = owners[j] != i and not bool(agree[i, texts[j]])
            assert bool(kept[j, i]) == expected
    kept = policy.apply_to(image, batch).negatives
    for anchor in range(8):
        for j in range(8):
            other = owners[anchor] != owners[j]
            expected = other and not bool(agree[owners[anchor], texts[j]])
            assert bool(kept[anchor, j]) == expected
