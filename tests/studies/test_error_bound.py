"""Proposition 1: the bound's terms, the world it is tested on, and that it holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.debiased import debiased_per_anchor
from studies.error_bound import ErrorBound, bound_terms, class_probabilities, flat, misspecified


def test_the_bound_holds_and_the_true_eta_leaves_less_error_than_none():
    small = {"negatives": [1, 16, 256], "positives": [1, 16], "points": 300, "draws": 20}
    study = ErrorBound(ErrorBound.small | small)
    points = flat([dict(cell) | study.measure(cell) for cell in study.cells()])
    assert len(points) == 6 * 3 * 2
    assert all(p["error"] - 2 * p["standard_error"] <= p["bound"] for p in points)
    at = {(p["eta"], p["N"], p["M"]): p["error"] for p in points}
    assert at["true", 256, 16] < at["zero", 256, 16] / 5


def test_last_term_vanishes_for_the_true_eta_only():
    rho = class_probabilities(5, 1.0)
    assert bound_terms(rho, rho, 10, 10)[2] == 0
    for kind in ("zero", "mean", "half", "double", "shuffled"):
        eta = misspecified(rho, kind)
        assert bound_terms(rho, eta, 10, 10)[2] > 0


def test_uniform_classes_give_the_bound_of_chuang_et_al():
    rho = class_probabilities(4, 0.0)
    first, second, third = bound_terms(rho, rho, 100, 25)
    root = 3 * math.e**2 * math.sqrt(math.pi / 2)
    assert first == pytest.approx(root / 10 / 0.75)
    assert second == pytest.approx(root / 5 * 0.25 / 0.75)
    assert third == 0


def test_estimator_is_that_of_our_loss():
    """The study's ``log(1 + N g / pair)`` is the library's loss at scale 1, M = 1."""
    rng = np.random.default_rng(1)
    similarity = torch.from_numpy(rng.uniform(-1, 1, (6, 6)))
    batch = ContrastiveBatch(similarity, torch.tensor(1.0, dtype=torch.float64))
    eta = torch.full((6,), 0.1, dtype=torch.float64)
    ours, _ = debiased_per_anchor(batch.anchors("text_to_image")[0], eta)
    kernel = np.exp(similarity.numpy().T)
    pair = np.diag(kernel)
    negatives = (kernel.sum(axis=1) - pair) / 5
    g = np.maximum((negatives - 0.1 * pair) / 0.9, math.exp(-1))
    assert ours.numpy() == pytest.approx(np.log1p(5 * g / pair), rel=1e-10)
