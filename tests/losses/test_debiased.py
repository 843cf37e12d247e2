"""The debiased loss against the formula as printed, closed forms and limit cases."""

from __future__ import annotations

import math

import pytest
import torch

from medclip_debias.losses import (
    ConstantEta,
    ContrastiveBatch,
    DebiasedContrastive,
    DebiasedSettings,
    InfoNCE,
    InfoNCESettings,
    LanguageModelEta,
    TableEta,
)

SIDES = ("text_to_image", "image_to_text")


def debiased(eta=None, **options):
    return DebiasedContrastive(DebiasedSettings(eta=eta or TableEta(), **options))


@pytest.mark.parametrize("scale", [1.0, 14.0, 100.0])
@pytest.mark.parametrize("constant", [0.0, 0.5, 0.99])
def test_float32_stays_within_a_thousandth_of_float64(make_batch, scale, constant):
    loss = debiased(ConstantEta(value=constant))
    for seed in range(3):
        results = []
        for dtype in (torch.float32, torch.float64):
            drawn = make_batch(seed, owners=list(range(16)), sample_ids=None).similarity.float()
            similarity = drawn.to(dtype).requires_grad_()
            value = loss(ContrastiveBatch(similarity, torch.tensor(scale, dtype=dtype))).loss
            value.backward()
            results.append((value.item(), similarity.grad.double()))
        (low, slope), (high, exact) = results
        assert low == pytest.approx(high, rel=1e-3)
        assert (slope - exact).abs().max() <= 1e-3 * exact.abs().max()


@pytest.mark.parametrize("direction", [*SIDES, "symmetric"])
def test_eta_zero_is_infonce(make_batch, direction):
    batch = make_batch(3, 14.0)
    plain = InfoNCE(InfoNCESettings(direction=direction))(batch).per_anchor
    zero = debiased(ConstantEta(value=0.0), direction=direction)(batch).per_anchor
    torch.testing.assert_close(zero, plain, rtol=1e-12, atol=1e-14)


def test_the_probability_of_a_long_sentence_never_underflows():
    log_prob = torch.tensor([-1.0, -2000.0])
    batch = ContrastiveBatch(torch.tensor([[0.5, 0.1], [0.2, 0.4]]), 14.0, log_prob=log_prob)
    out, plain = debiased(LanguageModelEta(a=0.2, k=0.35))(batch), InfoNCE()(batch)
    assert out.per_anchor[1] == plain.per_anchor[1]
    assert out.diagnostics["mean_eta"].item() == pytest.approx(0.1 * math.exp(-0.35), rel=1e-5)


def test_the_floor_takes_over_where_the_correction_exceeds_the_negatives():
    # Two images: positive at 1, negative at -1, eta .9: neg - eta pos is far below zero.
    batch = ContrastiveBatch(torch.eye(2).double() * 2 - 1, torch.tensor(2.0).double())
    out = debiased(ConstantEta(value=0.9))(batch)
    assert out.diagnostics["clamped"].item() == 1
    # log(1 + N exp(-scale - s+)) with N = 1
    assert out.loss.item() == pytest.approx(math.log1p(math.exp(-4.0)), rel=1e-12)


def test_eta_is_cut_at_both_ends_and_counted():
    eta = torch.tensor([-0.5, 0.2, 2.0, 0.0])
    figures = debiased()(ContrastiveBatch(torch.eye(4), 14.0, eta=eta)).diagnostics
    assert figures["eta_clipped"].item() == 2
    assert figures["mean_eta"].item() == pytest.approx((0 + 0.2 + 0.99 + 0) / 4)


@pytest.mark.parametrize("kind", ["table", "language_model"])
def test_a_shuffled_eta_keeps_the_dose_of_the_batch(make_batch, kind):
    batch = make_batch()
    plain, shuffled = (debiased({"kind": kind, "control": c})(batch) for c in ("none", "shuffled"))
    doses = (out.diagnostics["mean_eta"] for out in (plain, shuffled))
    torch.testing.assert_close(*doses)
    assert not torch.allclose(plain.per_anchor, shuffled.per_anchor)


@pytest.mark.parametrize("eta", [0.0, 1e-30, 0.3, 0.99])
@pytest.mark.parametrize("direction", SIDES)
def test_other_positives_far_above_the_pair_neither_overflow_nor_lose_the_gradient(eta, direction):
    """Two images of one study, the other one 200 logits above the pair, at scale 100."""
    drawn = [[-1.0, 0.2, -0.3], [1.0, 0.1, 0.4], [-1.0, 0.5, 0.9]]
    studies, values, slopes = [0, 0, 1], [], []
    loss = debiased(ConstantEta(value=eta), positives="study", direction=direction)
    for dtype in (torch.float32, torch.float64):
        similarity = torch.tensor(drawn, dtype=dtype, requires_grad=True)
        g2 = torch.tensor(100.0, dtype=dtype, requires_grad=True)
        batch = ContrastiveBatch(similarity, g2, sample_ids=torch.tensor(studies))
        out = loss(batch)
        out.loss.backward()
        assert torch.isfinite(g2.grad)
        values.append(out.per_anchor.detach().double())
        slopes.append(similarity.grad.double())
    torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-4)
