"""Global vectors: the formulas written out, and how well they follow the exact score."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from medclip_debias.config import SimilaritySettings
from medclip_debias.grounding.search.landmarks import (
    RIDGE,
    Landmarks,
    mean_direction,
    recall_at,
    sentence_scores,
)

from .conftest import by_regions


def made(images=600, sentences=400, side=5, dim=24, seed=0):
    """Images with one or two findings in a few regions, and sentences that name a finding."""
    rng = np.random.default_rng(seed)
    findings = rng.normal(size=(12, dim))
    regions = 0.6 * rng.normal(size=(images, side * side, dim)) + rng.normal(size=dim)
    for image in regions:
        for finding in rng.choice(12, size=rng.integers(1, 3), replace=False):
            image[rng.integers(side * side, size=3)] += rng.uniform(1, 4) * findings[finding]
    y = findings[rng.integers(12, size=sentences)] + 0.3 * rng.normal(size=(sentences, dim))
    regions /= np.linalg.norm(regions, axis=-1, keepdims=True)
    y = F.normalize(torch.from_numpy(y).float(), dim=-1)
    return regions.astype(np.float16), y


def test_vectors_are_what_the_formulas_say():
    regions, y = made(images=80, sentences=30)
    scores = sentence_scores(by_regions(SimilaritySettings(), 24), regions, y)
    landmarks = Landmarks.fit(y.numpy(), scores, rank=8)
    s = scores.astype(np.float64)
    # Leading right singular vectors, by the eigenvectors of the covariance.
    values, vectors = np.linalg.eigh((s - s.mean(0)).T @ (s - s.mean(0)))
    top = vectors[:, np.argsort(values)[::-1][:8]]
    images = landmarks.images(scores)
    np.testing.assert_allclose(np.abs(images), np.abs((s - s.mean(0)) @ top), atol=2e-4)
    cosines = y.double().numpy() @ y.double().numpy().T
    kernel = np.exp(landmarks.sharpness * (cosines - 1))
    other = made(seed=5, sentences=4)[1]
    near = np.exp(landmarks.sharpness * (other.double().numpy() @ y.double().numpy().T - 1))
    smoothed = near @ np.linalg.inv(kernel + RIDGE * np.eye(30))
    expected = (s - s.mean(0)) @ top @ top.T @ smoothed.T
    np.testing.assert_allclose(images @ landmarks.queries(other.numpy()).T, expected, atol=2e-3)


def test_they_find_what_the_mean_direction_does_not():
    """Recall@10 of 60 candidates among 600 images, for sentences that were not learned from."""
    regions, y = made()
    exact = sentence_scores(by_regions(SimilaritySettings(), 24), regions, y)
    landmarks = Landmarks.fit(y[:300].numpy(), exact[:, :300], rank=24)
    learned = landmarks.images(exact[:, :300]) @ landmarks.queries(y[300:].numpy()).T
    plain = mean_direction(regions) @ y[300:].numpy().T

    def recall(approximate):
        best = np.argsort(-approximate, axis=0)[:60]
        return np.mean([recall_at(exact[:, 300 + q], best[:, q], 10) for q in range(100)])

    assert recall(learned) > 0.95
    assert recall(learned) > recall(plain) + 0.1
