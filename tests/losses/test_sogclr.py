"""SogCLR against a loop in float64, finite differences, and the limits it must have."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from medclip_debias.losses import ContrastiveBatch, SogCLR, SogCLRSettings, TwoViewBatch
from tests.losses.conftest import rows_of


def drawn_batch(seed, ids, owners=None, scale=1.0):
    g = torch.Generator().manual_seed(seed)
    shape = len(ids), len(ids if owners is None else owners)
    similarity = torch.rand(shape, generator=g, dtype=torch.float64) * 2 - 1
    owners = None if owners is None else torch.tensor(owners)
    batch = ContrastiveBatch(similarity, scale, owners, sample_ids=torch.tensor(ids))
    batch.similarity = similarity.requires_grad_()
    return batch


def anchors_of(batch, direction):
    """Similarities, place of the positive, places of the negatives and sample of each anchor."""
    ids = batch["sample_ids"].tolist()
    for row in rows_of(batch, direction):
        yield np.array(row.logits), row.own, row.others, ids[row.image]


class Loop:
    """The averages of one side, one anchor at a time: equation 5, first visit u = g."""

    def __init__(self, tau, gamma):
        self.tau, self.gamma, self.u = tau, gamma, {}

    def step(self, anchors):
        """Loss of each anchor, and its gradient over the row's similarities, with u held."""
        anchors, values = list(anchors), {}
        for row, own, others, sample in anchors:
            values.setdefault(sample, []).append(np.exp((row[others] - row[own]) / self.tau).mean())
        for sample, g in values.items():
            old = self.u.get(sample, np.mean(g))
            self.u[sample] = (1 - self.gamma) * old + self.gamma * np.mean(g)
        losses, gradients = [], []
        for row, own, others, sample in anchors:
            gradient = np.zeros(len(row))
            gradient[others] = np.exp((row[others] - row[own]) / self.tau) / len(others)
            gradient /= self.u[sample] + 1e-14
            gradient[own] = -gradient.sum()
            losses.append(self.tau * math.log(self.u[sample]))
            gradients.append(gradient)
        return np.array(losses), np.array(gradients)


def test_equals_a_loop_over_anchors_through_many_steps():
    loss, text, image = SogCLR(SogCLRSettings(tau=0.3, gamma=0.6)), Loop(0.3, 0.6), Loop(0.3, 0.6)
    generator = torch.Generator().manual_seed(0)
    for step in range(8):
        batch = drawn_batch(step, torch.randperm(9, generator=generator)[:6].tolist())
        out = loss(batch)
        out.loss.backward()
        text_loss, text_gradient = text.step(anchors_of(batch, "text_to_image"))
        image_loss, image_gradient = image.step(anchors_of(batch, "image_to_text"))
        losses = (text_loss + image_loss) / 2
        np.testing.assert_allclose(out.per_anchor.detach(), losses, rtol=2e-6)
        gradient = (text_gradient.T + image_gradient) / 2 / 6
        np.testing.assert_allclose(batch.similarity.grad, gradient, rtol=1e-5, atol=1e-12)


def test_a_sample_with_several_sentences_or_two_views_has_one_average():
    loss = SogCLR(SogCLRSettings(tau=0.5, gamma=0.7, direction="text_to_image"))
    text, views = Loop(0.5, 0.7), Loop(0.5, 0.7)
    for step in range(3):
        # Images 0 and 2 are of one study, but only the pair itself is no negative here.
        batch = drawn_batch(step, [5, 3, 5], owners=[0, 0, 1, 2])
        expected, _ = text.step(anchors_of(batch, "text_to_image"))
        np.testing.assert_allclose(loss(batch).per_anchor.detach(), expected, rtol=2e-6)
        first, second = torch.randn(2, 4, 5, dtype=torch.float64)
        batch = TwoViewBatch.from_views(first, second, 1.0, sample_ids=torch.arange(4))
        others = [[n for n in range(8) if n % 4 != a % 4] for a in range(8)]
        rows = batch.similarity.numpy()
        expected, _ = views.step([(rows[a], (a + 4) % 8, others[a], a % 4) for a in range(8)])
        np.testing.assert_allclose(loss(batch).per_anchor, expected, rtol=2e-6)
    assert loss.tables.text["visits"].tolist() == [0, 0, 0, 3, 0, 3]
    assert len(loss.tables.view) == 4


def test_the_margin_pulls_the_temperature_as_the_robust_loss_says():
    # d/dtau of tau (log g + rho), by hand for two pairs: log g = d / tau, so it is rho alone.
    similarity = torch.tensor([[0.8, 0.1], [0.1, 0.8]], dtype=torch.float64)
    scale = torch.tensor(4.0, dtype=torch.float64, requires_grad=True)
    loss = SogCLR(SogCLRSettings(gamma=1.0, temperature="robust", rho=3.0))
    out = loss(ContrastiveBatch(similarity, scale, sample_ids=torch.arange(2)))
    assert out.loss.item() == pytest.approx(-0.7 + 0.25 * 3.0, rel=1e-12)
    out.loss.backward()
    assert scale.grad.item() == pytest.approx(-3.0 / 16, rel=1e-9)


def test_individual_temperatures_follow_adam_on_their_own_gradient():
    options = {"gamma": 0.8, "tau": 0.2, "tau_lr": 0.01, "rho": 1.5}
    loss = SogCLR(SogCLRSettings(temperature="individual", direction="image_to_text", **options))
    state = [{"tau": 0.2, "m": 0.0, "v": 0.0, "u": None} for _ in range(5)]
    for step in range(4):
        batch, expected = drawn_batch(step, range(5)), []
        for similarity, own, others, sample in anchors_of(batch, "image_to_text"):
            row = state[sample]
            d = (similarity[others] - similarity[own]) / row["tau"]
            g = np.exp(d).mean()
            row["u"] = g if row["u"] is None else 0.2 * row["u"] + 0.8 * g
            expected.append(row["tau"] * (math.log(row["u"]) + 1.5))
            gradient = math.log(row["u"]) + 1.5 - (np.exp(d) * d).mean() / row["u"]
            gradient = float(np.clip(gradient, -5, 5))
            row["m"] = 0.9 * row["m"] + 0.1 * gradient
            row["v"] = 0.999 * row["v"] + 0.001 * gradient**2
            m, v = row["m"] / (1 - 0.9 ** (step + 1)), row["v"] / (1 - 0.999 ** (step + 1))
            row["tau"] = min(max(row["tau"] - 0.01 * m / (math.sqrt(v) + 1e-8), 0.01), 1.0)
        np.testing.assert_allclose(loss(batch).per_anchor.detach(), expected, rtol=1e-4)
    taus = [row["tau"] for row in state]
    np.testing.assert_allclose(loss.tables.image["tau"], taus, rtol=1e-4)


def test_glofnd_decides_which_negatives_count():
    similarity = torch.tensor([[0.9, 0.8, 0.1], [0.2, 0.7, 0.3], [0.0, 0.1, 0.6]]).double()
    policy = {"kind": "glofnd", "alpha": 0.5, "init": "quantile"}
    loss = SogCLR(SogCLRSettings(tau=0.5, direction="image_to_text", negatives=[policy]))
    out = loss(ContrastiveBatch(similarity, 14.0, sample_ids=torch.arange(3)))
    # The larger of two negatives lies above their median: g is the smaller one's alone.
    np.testing.assert_allclose(out.per_anchor, [0.1 - 0.9, 0.2 - 0.7, 0.0 - 0.6], rtol=1e-6)
    assert out.diagnostics["removed"].item() == pytest.approx(0.5)
    assert out.diagnostics["glofnd_removed"].item() == pytest.approx(0.5)


def test_evaluation_uses_the_averages_and_leaves_them():
    loss, batch = SogCLR(SogCLRSettings(tau=0.5)), drawn_batch(5, range(6))
    trained = loss(batch).per_anchor
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    torch.testing.assert_close(loss.eval()(batch).per_anchor, trained, rtol=1e-6, atol=1e-7)
    assert all(torch.equal(before[name], value) for name, value in loss.state_dict().items())
