"""SogCLR against a loop in float64, finite differences, and the limits it must have."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from medclip_debias.errors import UserError
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.objective import loss_settings
from medclip_debias.losses.sogclr import SogCLR, SogCLRSettings
from medclip_debias.losses.two_views import TwoViewBatch


def matrix(seed, images=6, sentences=None):
    g = torch.Generator().manual_seed(seed)
    return torch.rand(images, sentences or images, generator=g, dtype=torch.float64) * 2 - 1


def batch_of(similarity, ids, owners=None, scale=14.0):
    g2 = torch.tensor(scale, dtype=similarity.dtype)
    return ContrastiveBatch(similarity, g2, owners, sample_ids=ids)


class Loop:
    """The averages of one side, one anchor at a time: equation 5, first visit u = g."""

    def __init__(self, tau, gamma):
        self.tau, self.gamma, self.u = tau, gamma, {}

    def step(self, rows, positives, negatives, ids):
        """Loss of each anchor, its gradient over the row's similarities, with u held."""
        g = [
            np.mean([math.exp((row[n] - row[p]) / self.tau) for n in others])
            for row, p, others in zip(rows, positives, negatives, strict=True)
        ]
        for sample in sorted(set(ids)):
            mean = np.mean([value for value, i in zip(g, ids, strict=True) if i == sample])
            old = self.u.get(sample)
            self.u[sample] = mean if old is None else (1 - self.gamma) * old + self.gamma * mean
        losses = [self.tau * math.log(self.u[i]) for i in ids]
        gradients = []
        for row, p, others, i in zip(rows, positives, negatives, ids, strict=True):
            gradient = np.zeros(len(row))
            for n in others:
                part = math.exp((row[n] - row[p]) / self.tau) / self.tau / len(others)
                gradient[n] += self.tau * part / (self.u[i] + 1e-14)
                gradient[p] -= self.tau * part / (self.u[i] + 1e-14)
            gradients.append(gradient)
        return np.array(losses), np.array(gradients)


def test_equals_a_loop_over_anchors_through_many_steps():
    loss = SogCLR(SogCLRSettings(tau=0.3, gamma=0.6))
    text, image = Loop(0.3, 0.6), Loop(0.3, 0.6)
    generator = torch.Generator().manual_seed(0)
    for step in range(8):
        ids = torch.randperm(9, generator=generator)[:6]
        similarity = matrix(step).requires_grad_()
        out = loss(batch_of(similarity, ids))
        out.loss.backward()
        s = similarity.detach().numpy()
        own, others = range(6), [[n for n in range(6) if n != a] for a in range(6)]
        text_loss, text_gradient = text.step(s.T, own, others, ids.tolist())
        image_loss, image_gradient = image.step(s, own, others, ids.tolist())
        expected = (text_loss + image_loss) / 2
        np.testing.assert_allclose(out.per_anchor.detach(), expected, rtol=2e-6)
        gradient = (text_gradient.T + image_gradient) / 2 / 6
        np.testing.assert_allclose(similarity.grad, gradient, rtol=1e-5, atol=1e-12)


def test_a_sample_with_several_sentences_has_one_average():
    owners, ids = torch.tensor([0, 0, 1, 2]), torch.tensor([5, 3, 5])
    loss = SogCLR(SogCLRSettings(tau=0.5, gamma=0.7, direction="text_to_image"))
    loop = Loop(0.5, 0.7)
    for step in range(3):
        similarity = matrix(step, 3, 4)
        out = loss(batch_of(similarity, ids, owners))
        # Images 0 and 2 are of one study, but only the pair itself is no negative here.
        others = [[n for n in range(3) if n != i] for i in owners.tolist()]
        anchors = ids[owners].tolist()
        expected, _ = loop.step(similarity.T.numpy(), owners.tolist(), others, anchors)
        np.testing.assert_allclose(out.per_anchor, expected, rtol=2e-6)
    assert loss.tables.text["visits"].tolist() == [0, 0, 0, 3, 0, 3]


def test_the_two_views_of_an_image_share_one_average():
    g = torch.Generator().manual_seed(1)
    views = [torch.randn(4, 5, generator=g, dtype=torch.float64) for _ in range(4)]
    loss, loop = SogCLR(SogCLRSettings(tau=0.4, gamma=0.5)), Loop(0.4, 0.5)
    for first, second in (views[:2], views[2:]):
        batch = TwoViewBatch.from_views(first, second, 1.0, sample_ids=torch.arange(4))
        own = [(a + 4) % 8 for a in range(8)]
        others = [[n for n in range(8) if n % 4 != a % 4] for a in range(8)]
        expected, _ = loop.step(batch.similarity.numpy(), own, others, [a % 4 for a in range(8)])
        np.testing.assert_allclose(loss(batch).per_anchor, expected, rtol=2e-6)
    assert len(loss.tables.view) == 4


@pytest.mark.parametrize("temperature", ["constant", "model", "robust", "modality"])
def test_with_gamma_one_the_gradient_is_the_numerical_one(temperature):
    # Then u = g, and the estimator is the derivative of the value itself.
    loss = SogCLR(SogCLRSettings(gamma=1.0, tau=0.2, temperature=temperature, rho=2.0)).double()
    ids, parameters = torch.arange(4), dict(loss.named_parameters())

    def value(similarity, scale, *given):
        batch = ContrastiveBatch(similarity, scale, sample_ids=ids)
        names = dict(zip(parameters, given, strict=True))
        return torch.func.functional_call(loss, names, (batch,)).loss

    inputs = (
        matrix(2, 4).requires_grad_(),
        torch.tensor(5.0, dtype=torch.float64, requires_grad=True),
        *(p.detach().clone().requires_grad_() for p in parameters.values()),
    )
    assert torch.autograd.gradcheck(value, inputs, atol=1e-6)


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
    settings = SogCLRSettings(
        gamma=0.8,
        temperature="individual",
        tau=0.2,
        tau_lr=0.01,
        rho=1.5,
        direction="image_to_text",
    )
    loss = SogCLR(settings)
    state = [{"tau": 0.2, "m": 0.0, "v": 0.0, "u": None} for _ in range(5)]
    for step in range(4):
        similarity = matrix(step, 5)
        out = loss(batch_of(similarity, torch.arange(5)))
        expected = []
        for i, row in enumerate(state):
            d = np.delete((similarity[i] - similarity[i, i]).numpy(), i) / row["tau"]
            g = np.exp(d).mean()
            row["u"] = g if row["u"] is None else 0.2 * row["u"] + 0.8 * g
            expected.append(row["tau"] * (math.log(row["u"]) + 1.5))
            gradient = math.log(row["u"]) + 1.5 - (np.exp(d) * d).mean() / row["u"]
            gradient = float(np.clip(gradient, -5, 5))
            row["m"] = 0.9 * row["m"] + 0.1 * gradient
            row["v"] = 0.999 * row["v"] + 0.001 * gradient**2
            m, v = row["m"] / (1 - 0.9 ** (step + 1)), row["v"] / (1 - 0.999 ** (step + 1))
            row["tau"] = min(max(row["tau"] - 0.01 * m / (math.sqrt(v) + 1e-8), 0.01), 1.0)
        np.testing.assert_allclose(out.per_anchor, expected, rtol=1e-4)
    taus = [row["tau"] for row in state]
    np.testing.assert_allclose(loss.tables.image["tau"], taus, rtol=1e-4)


def test_glofnd_decides_which_negatives_count():
    similarity = torch.tensor(
        [[0.9, 0.8, 0.1], [0.2, 0.7, 0.3], [0.0, 0.1, 0.6]], dtype=torch.float64
    )
    for keep_mass in (False, True):
        policy = {"kind": "glofnd", "alpha": 0.5, "init": "quantile", "keep_mass": keep_mass}
        settings = SogCLRSettings(tau=0.5, direction="image_to_text", negatives=[policy])
        out = SogCLR(settings)(batch_of(similarity, torch.arange(3)))
        # The larger of two negatives lies above their median: g is the smaller one's alone.
        np.testing.assert_allclose(out.per_anchor, [0.1 - 0.9, 0.2 - 0.7, 0.0 - 0.6], rtol=1e-6)
        assert out.diagnostics["removed"].item() == pytest.approx(0.5)
        assert out.diagnostics["glofnd_removed"].item() == pytest.approx(0.5)


def test_evaluation_uses_the_averages_and_leaves_them():
    loss = SogCLR(SogCLRSettings(tau=0.5))
    batch = batch_of(matrix(5), torch.arange(6))
    trained = loss(batch).per_anchor
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    torch.testing.assert_close(loss.eval()(batch).per_anchor, trained, rtol=1e-6, atol=1e-7)
    assert all(torch.equal(before[name], value) for name, value in loss.state_dict().items())


def test_wrong_settings_are_one_sentence():
    cosine = {"kind": "sogclr", "gamma_schedule": "cosine"}
    with pytest.raises(UserError, match="decay_steps"):
        loss_settings(cosine, "run.yaml")
    with pytest.raises(UserError, match="tau_min"):
        loss_settings({"kind": "sogclr", "tau": 0.001}, "run.yaml")
    with pytest.raises(ValueError, match="sample_ids"):
        SogCLR()(ContrastiveBatch(torch.eye(2), torch.tensor(1.0)))
