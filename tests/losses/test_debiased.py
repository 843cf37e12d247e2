"""The debiased loss against the formula as printed, closed forms and limit cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from medclip_debias.losses import (
    ConstantEta,
    ContrastiveBatch,
    DebiasedContrastive,
    DebiasedSettings,
    InfoNCE,
    InfoNCESettings,
    LanguageModelEta,
    Policy,
    PolicySettings,
    TableEta,
)
from medclip_debias.losses.objective import POLICIES


def naive_loss(similarity, scale, owners, eta):
    """Equations 7 and 8 with the floor, as printed, one exponential at a time, float64."""
    losses = []
    for j, image in enumerate(owners):
        s = [scale * similarity[i][j] for i in range(len(similarity))]
        pos = math.exp(s[image])
        negatives = [math.exp(v) for i, v in enumerate(s) if i != image]
        n, e = len(negatives), eta[j]
        ng = max((sum(negatives) - n * e * pos) / (1 - e), n * math.exp(-scale))
        losses.append(-math.log(pos / (pos + ng)))
    return losses


def random_case(seed, images=6, sentences=9, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    similarity = torch.rand(images, sentences, generator=g, dtype=torch.float64) * 2 - 1
    owners = torch.randint(0, images, (sentences,), generator=g)
    eta = torch.rand(sentences, generator=g, dtype=torch.float64) * 0.99
    return similarity.to(dtype), owners, eta.to(dtype)


@pytest.mark.parametrize("scale", [1.0, 3.0, 14.0, 40.0, 100.0])
@pytest.mark.parametrize("seed", range(5))
def test_equals_the_printed_formula_in_float64(scale, seed):
    similarity, owners, eta = random_case(seed)
    loss = DebiasedContrastive(DebiasedSettings(eta=TableEta()))
    out = loss(ContrastiveBatch(similarity, torch.tensor(scale).double(), owners, eta=eta))
    expected = naive_loss(similarity.tolist(), scale, owners.tolist(), eta.tolist())
    np.testing.assert_allclose(out.per_anchor.numpy(), expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("scale", [1.0, 14.0, 60.0, 100.0])
@pytest.mark.parametrize("constant", [0.0, 0.05, 0.5, 0.9, 0.99])
def test_float32_stays_within_a_thousandth_of_float64(scale, constant):
    for seed in range(5):
        similarity, owners, _ = random_case(seed, images=16, sentences=16)
        eta = torch.full((16,), constant, dtype=torch.float64)
        single = similarity.float().requires_grad_()
        exact = single.detach().double().requires_grad_()
        loss = DebiasedContrastive(DebiasedSettings(eta=TableEta()))
        out = loss(ContrastiveBatch(single, torch.tensor(scale), owners, eta=eta.float()))
        out.loss.backward()
        loss(ContrastiveBatch(exact, scale, owners, eta=eta.float().double())).loss.backward()
        expected = np.mean(naive_loss(exact.tolist(), scale, owners.tolist(), eta.float().tolist()))
        assert out.loss.item() == pytest.approx(expected, rel=1e-3)
        assert (single.grad - exact.grad).abs().max() <= 1e-3 * exact.grad.abs().max()


@settings(deadline=None, max_examples=200)
@given(
    seed=st.integers(0, 2**31),
    scale=st.floats(1, 100),
    eta=st.floats(0, 0.999999),
    images=st.integers(1, 6),
    extreme=st.sampled_from(["random", "all one", "all minus one", "best", "worst"]),
)
def test_loss_and_gradients_are_finite_everywhere(seed, scale, eta, images, extreme):
    g = torch.Generator().manual_seed(seed)
    similarity = torch.rand(images, images, generator=g) * 2 - 1
    eye = torch.eye(images) * 2 - 1
    similarity = {
        "random": similarity,
        "all one": torch.ones(images, images),
        "all minus one": -torch.ones(images, images),
        "best": eye,
        "worst": -eye,
    }[extreme].requires_grad_()
    g2 = torch.tensor(scale, requires_grad=True)
    for direction in ("text_to_image", "image_to_text", "symmetric"):
        objective = DebiasedContrastive(
            DebiasedSettings(eta=ConstantEta(value=eta), direction=direction)
        )
        out = objective(ContrastiveBatch(similarity, g2))
        out.loss.backward()
        assert torch.isfinite(out.per_anchor).all()
        assert (out.per_anchor >= -1e-6).all()
        assert torch.isfinite(similarity.grad).all()
        assert torch.isfinite(g2.grad)


@pytest.mark.parametrize("scale", [1.0, 14.0, 100.0])
def test_eta_zero_is_cross_entropy(scale):
    similarity, _, _ = random_case(3, images=8, sentences=8)
    batch = ContrastiveBatch(similarity, torch.tensor(scale).double())
    target = torch.arange(8)
    text = F.cross_entropy(scale * similarity.T, target)
    image = F.cross_entropy(scale * similarity, target)
    zero = DebiasedContrastive(DebiasedSettings(eta=ConstantEta(value=0.0)))
    assert zero(batch).loss.item() == pytest.approx(text.item(), rel=1e-12)
    assert InfoNCE()(batch).loss.item() == pytest.approx(text.item(), rel=1e-12)
    other = InfoNCE(InfoNCESettings(direction="image_to_text"))
    assert other(batch).loss.item() == pytest.approx(image.item(), rel=1e-12)
    both = InfoNCE(InfoNCESettings(direction="symmetric"))
    assert both(batch).loss.item() == pytest.approx((text + image).item() / 2, rel=1e-12)


def test_the_floor_takes_over_where_the_correction_exceeds_the_negatives():
    # Two images: positive at 1, negative at -1, eta .9: neg - eta pos is far below zero.
    similarity = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    g2 = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    objective = DebiasedContrastive(DebiasedSettings(eta=ConstantEta(value=0.9)))
    out = objective(ContrastiveBatch(similarity, g2))
    assert out.diagnostics["clamped"].item() == 1
    # loss = log(1 + N exp(-g2 - s+)) with N = 1 and s+ = g2: differentiated through g2 twice.
    assert out.loss.item() == pytest.approx(math.log1p(math.exp(-4.0)), rel=1e-12)
    out.loss.backward()
    assert g2.grad.item() == pytest.approx(-2 * math.exp(-4) / (1 + math.exp(-4)), rel=1e-12)


def test_language_model_eta_is_a_p_to_the_k_and_never_underflows():
    log_prob = torch.tensor([-1.0, -2000.0])
    objective = DebiasedContrastive(DebiasedSettings(eta=LanguageModelEta(a=0.2, k=0.35)))
    similarity = torch.tensor([[0.5, 0.1], [0.2, 0.4]])
    out = objective(ContrastiveBatch(similarity, torch.tensor(14.0), log_prob=log_prob))
    eta = [0.2 * math.exp(-0.35), 0.0]
    expected = naive_loss(similarity.tolist(), 14.0, [0, 1], eta)
    np.testing.assert_allclose(out.per_anchor.numpy(), expected, rtol=1e-5)
    assert out.diagnostics["mean_eta"].item() == pytest.approx(eta[0] / 2, rel=1e-5)


def test_eta_is_cut_at_both_ends_and_counted():
    eta = torch.tensor([-0.5, 0.2, 2.0, 0.0])
    batch = ContrastiveBatch(torch.eye(4), torch.tensor(14.0), eta=eta)
    figures = DebiasedContrastive(DebiasedSettings(eta=TableEta()))(batch).diagnostics
    assert figures["eta_clipped"].item() == 2
    assert figures["mean_eta"].item() == pytest.approx((0 + 0.2 + 0.99 + 0) / 4)


@pytest.mark.parametrize("eta", [0.0, 1e-30, 0.3, 0.99])
@pytest.mark.parametrize("direction", ["text_to_image", "image_to_text"])
def test_other_positives_far_above_the_pair_neither_overflow_nor_lose_the_gradient(eta, direction):
    """Two images of one study, the other one 200 logits above the pair, at scale 100."""
    similarity = torch.tensor([[-1.0, 0.2, -0.3], [1.0, 0.1, 0.4], [-1.0, 0.5, 0.9]])
    ids = torch.tensor([0, 0, 1])
    found = {}
    for dtype in (torch.float32, torch.float64):
        h = similarity.to(dtype).detach().clone().requires_grad_()
        g2 = torch.tensor(100.0, dtype=dtype, requires_grad=True)
        loss = DebiasedContrastive(
            DebiasedSettings(eta=ConstantEta(value=eta), positives="study", direction=direction)
        )
        out = loss(ContrastiveBatch(h, g2, sample_ids=ids))
        out.loss.backward()
        assert torch.isfinite(h.grad).all()
        assert torch.isfinite(g2.grad)
        found[dtype] = out.per_anchor.detach().double(), h.grad.double()
    (low, low_slope), (high, high_slope) = found.values()
    assert torch.allclose(low, high, rtol=1e-5, atol=1e-6)
    assert torch.allclose(low_slope, high_slope, rtol=1e-4, atol=1e-4)
    rows = similarity.double() if direction == "image_to_text" else similarity.double().T
    for anchor in range(3):
        negatives = [j for j in range(3) if ids[j] != ids[anchor]]
        positives = [j for j in range(3) if ids[j] == ids[anchor]]
        s = [math.exp(100 * float(v)) for v in rows[anchor]]
        v = sum(s[j] for j in positives) / len(positives)
        n = len(negatives)
        mass = (sum(s[j] for j in negatives) - n * eta * v) / (1 - eta)
        mass = max(mass, n * math.exp(-100))
        assert high[anchor].item() == pytest.approx(math.log1p(mass / s[anchor]), rel=1e-9)


# ------------------------------------------------------------------ with policies and positives


def policy(kind, **settings):
    return POLICIES.build(POLICIES.settings({"kind": kind} | settings, "test"))


class Given(Policy):
    """Weights that the test gives, not registered."""

    def forward(self, anchors, batch):
        return self.weights


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
    given = Given(PolicySettings())
    given.weights = weights
    objective.policies.append(given)
    out = objective(batch)
    owners, studies = batch.owners.tolist(), batch["sample_ids"].tolist()
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
        expected = weighted_loss(logits, 3.0, own, same, row, batch["eta"][j].item())
        assert out.per_anchor[j].item() == pytest.approx(expected, rel=1e-9, abs=1e-13)
    assert out.per_anchor[5] == 0


def test_each_policy_sees_what_the_one_before_has_left(make_batch):
    batch = make_batch(0)
    anchors = batch.anchors("text_to_image")[0]
    top = policy("fnc", alpha=1e-9, keep_mass=False)
    once = top.apply_to(anchors, batch)
    twice = top.apply_to(once, batch)
    for j in range(8):
        order = anchors.logits[j].masked_fill(~anchors.negatives[j], -torch.inf).argsort()
        gone = set(np.flatnonzero(anchors.negatives[j] & ~twice.negatives[j]).tolist())
        assert gone == set(order[-2:].tolist())
    assert (twice.mass == anchors.mass - 2).all()


def test_a_policy_does_not_spend_its_removals_on_further_positives(several_images):
    batch = several_images
    fnc = {"kind": "fnc", "alpha": 0.01, "keep_mass": False}
    settings = DebiasedSettings(eta=ConstantEta(value=0), positives="study", negatives=(fnc,))
    (anchors,), _ = DebiasedContrastive(settings).anchors(batch)
    # The most similar other image of sentence 0 is of its own study; the only negative goes.
    assert not anchors.negatives[0].any()
    # Of sentence 2 the three images of the other study are negatives: the most similar goes.
    assert anchors.negatives[2].tolist() == [True, True, False, False]
