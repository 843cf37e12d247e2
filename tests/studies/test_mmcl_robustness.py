"""Data models and coloured digits: closed forms against simulation, and the theorems' numbers."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from studies import mmcl_robustness as models


def test_contrastive_scores_are_those_of_the_minimiser_found_by_descent():
    rng = np.random.default_rng(0)
    images, texts = rng.normal(size=(20, 5)), rng.normal(size=(20, 4))
    n, rho = 20, 0.7
    left, right = rng.normal(size=(6, 5)) * 0.3, rng.normal(size=(6, 4)) * 0.3
    pairs = texts.T @ images / n
    crossed = (np.outer(texts.sum(0), images.sum(0)) - texts.T @ images) / (n * (n - 1))
    target = (pairs - crossed).T
    for _ in range(30000):  # descent on the loss of section 3.2
        gap = rho * left.T @ right - target
        left, right = left - 0.05 * right @ gap.T, right - 0.05 * left @ gap
    test, prompts = rng.normal(size=(3, 5)), rng.normal(size=(2, 4))
    learned = test @ (left.T @ right) @ prompts.T * rho
    assert models.contrastive_scores(images, texts, test, prompts) == pytest.approx(
        learned, abs=1e-6
    )


@pytest.mark.parametrize("mentioned", [0.0, 0.5, 1.0])
def test_caption_richness_enters_linearly(mentioned):
    """Theorem 5.2 prints a square; a million draws say otherwise."""
    rng = np.random.default_rng(1)
    z, y, a = models.features_1(rng, 1_000_000, 0.95)
    caption = models.masked_1(rng, z, y, a, mentioned, 1.0)
    weight = (z[:, 0] * caption[:, 0]).mean(), (z[:, 1] * caption[:, 0]).mean()
    assert weight[0] == pytest.approx(1 + mentioned, abs=0.01)
    assert weight[1] == pytest.approx(0.9, abs=0.01)
    seen, label, sign = models.features_1(rng, 1_000_000, 0.5)
    right = np.sign(seen @ np.array(weight)) == label
    expected = models.accuracy_1(0.95, mentioned)
    assert models.accuracy_1(1.0, 1.0, 0.0) == pytest.approx(0.69, abs=0.005)  # corollary 4.5
    assert right[sign != label].mean() == pytest.approx(expected, abs=0.004)


def test_supervised_learning_falls_for_the_spurious_feature():
    rng = np.random.default_rng(2)
    n, d = 400, 800
    z, y, _ = models.features_1(rng, n, 0.99)
    x = models.inputs(rng, z, d, 6.0)
    seen, label, sign = models.features_1(rng, 2000, 0.5)
    test = models.inputs(rng, seen, d, 6.0)
    assert (y * models.supervised_1(x, y, x)).min() > 0  # it separates what it learned from
    right = np.sign(models.supervised_1(x, y, test)) == label
    assert right.mean() <= 2 / 3
    assert right[sign != label].mean() <= 1 / 3


def test_maximum_margin_direction_of_data_model_2_has_the_symmetric_form():
    """A hard-margin machine on all feature vectors of two classes' coordinates."""
    from itertools import product

    from sklearn.svm import LinearSVC

    alpha, beta, m = 2.0, 1 / 3, 2
    rows, labels = [], []
    for k, c in product(range(m), (-1.0, 1.0)):
        other = 1 - k
        for first, second in product((-beta, beta), repeat=2):
            z = np.zeros(2 * m)
            z[k], z[k + m], z[other], z[other + m] = c, alpha * c, first, alpha * second
            rows.append(z)
            labels.append(2 * k + (c < 0))
    machine = LinearSVC(
        C=1e6, multi_class="crammer_singer", fit_intercept=False, tol=1e-8, max_iter=200_000
    ).fit(np.array(rows), labels)
    w = machine.coef_[0]
    assert w[m] / w[0] == pytest.approx(alpha, rel=0.05)  # as `accuracy_2` says
    assert np.abs(w[[1, 3]]).max() < 0.05 * np.abs(w).max()


def test_cross_covariance_of_data_model_2_is_the_sampled_one():
    rng = np.random.default_rng(3)
    m, alpha, beta, mentioned = 3, 2.0, 0.5, 0.6
    z, k, c = models.features_2(rng, 400_000, m, alpha, beta)
    z[np.arange(len(z)), k + m] = alpha * c  # as in training
    keep = rng.random(z.shape) < mentioned
    keep[np.arange(len(z)), k] = True
    covariance = z.T @ (z * keep) / len(z)
    core, spurious = models.contrastive_weights_2(m, alpha, beta, mentioned)
    assert covariance[0, 0] * m == pytest.approx(core, abs=0.02)
    assert covariance[m, 0] * m == pytest.approx(spurious, abs=0.03)
    assert abs(covariance[1, 0]) < 0.01


@pytest.mark.parametrize(
    ("m", "shift", "always"),
    [(1780, None, False), (1800, None, True), (2400, -0.005, False), (2400, 0.005, True)],
)
def test_contrastive_learning_is_always_right_just_above_the_thresholds(m, shift, always):
    """Of the number of classes, and of the captions' richness."""
    alpha, beta = 10.0, 1 / 3
    mentioned = 1.0 if shift is None else models.least_mentioned(m, alpha, beta) + shift
    assert (m > models.least_classes(alpha, beta)) == (always or shift is not None)
    sampled = models.features_2(np.random.default_rng(4), 300, m, alpha, beta)
    learned = models.contrastive_weights_2(m, alpha, beta, mentioned)
    contrastive = models.accuracy_2(*sampled, learned)
    assert contrastive == 1.0 if always else contrastive <= 0.6
    assert models.accuracy_2(*sampled, (1.0, alpha)) <= 0.6  # supervised


DATA = load_digits()
PIXELS, DIGITS = DATA.data / 16, DATA.target


def test_colours_agree_as_often_as_asked_and_captions_name_what_they_are_asked_to():
    rng = np.random.default_rng(0)
    images, exact, labels, against = models.coloured(rng, PIXELS, DIGITS, 0.9, (1.0, 0.0))
    assert abs(against.mean() - 0.1) < 0.03
    painted = images.numpy().reshape(-1, 64, 3)
    background = PIXELS == 0
    red = painted[..., 0] > painted[..., 2]
    shown_red = (red & background).sum(axis=1) > background.sum(axis=1) / 2
    assert np.array_equal(shown_red, (labels == 1) != against)
    assert np.allclose(painted[PIXELS == 1], 1.0)  # digits stay visible
    assert np.array_equal(exact[:, 0], DIGITS - 4.5)
    assert set(exact[:, 1].tolist()) == {-1.5, 1.5}
    vague = models.coloured(rng, PIXELS, DIGITS, 0.9, (0.0, 1.0))[1]
    assert set(vague[:, 0].tolist()) == {-2.5, 2.5}
    assert set(vague[:, 1].tolist()) == {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5}


def test_training_is_repeatable_and_learns_its_own_distribution():
    cell = {"kind": "supervised", "core": 1.0, "spurious": 1.0, "agree": 0.995, "steps": 150}
    once, again = (models.trained_on_digits(cell | {"seed": 0}) for _ in range(2))
    assert once == again
    assert once["inside"] > 0.95
    other = cell | {"kind": "contrastive", "core": 0.0, "spurious": 0.0, "seed": 0}
    learned = models.trained_on_digits(other)
    assert learned["inside"] > 0.9
    assert all(np.isfinite(list(learned.values())))
