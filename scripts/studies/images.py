"""Image-only studies: SimCLR under any of our objectives, digits, and the linear probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from medclip_debias.losses import TwoViewBatch
from medclip_debias.losses.objective import Objective
from medclip_debias.models.backbones.resnet import ResNetRegions

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Split = tuple[Floats, Integers, Floats, Integers]
"""Training images ``[n, C, H, W]`` in 0..1 and their classes, and those of the test set."""


@dataclass(frozen=True)
class Encoder:
    """A trained network: ``trunk`` gives features, ``head`` what the objective saw of them."""

    trunk: nn.Module
    head: nn.Module

    @torch.no_grad()
    def features(self, images: Floats) -> Floats:
        """Features before the projection head: ``[n, F]``."""
        self.trunk.eval()
        found: Floats = self.trunk(torch.from_numpy(images)).numpy()
        self.trunk.train()
        return found

    @torch.no_grad()
    def embeddings(self, images: Floats) -> Floats:
        """Unit vectors after it: ``[n, 64]``."""
        projected = self.head(torch.from_numpy(self.features(images)))
        result: Floats = F.normalize(projected, dim=1).numpy()
        return result


def fit(
    images: Floats,
    objective: Objective,
    *,
    steps: int,
    batch: int,
    temperature: float,
    seed: int,
    fields: Mapping[str, NDArray[Any]] | None = None,
    trunk: nn.Module | None = None,
    views: Callable[[Tensor, torch.Generator], Tensor] | None = None,
) -> Encoder:
    """Train SimCLR on images ``[n, C, H, W]`` in 0..1 with Adam, rate 1e-3 and a cosine to 0.

    ``fields`` is what the objective reads beside the similarities (scale ``1 / temperature``), one
    entry an image; ``trunk`` another network than the one that fits the images' shape; ``views``
    another random view than `view`.
    """
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    trunk, views = trunk or _trunk(images.shape[1:]), views or view
    data = torch.from_numpy(images)
    width = trunk(data[:2]).shape[1]
    head = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 64))
    tables = {name: torch.from_numpy(values) for name, values in (fields or {}).items()}
    parameters = [*trunk.parameters(), *head.parameters(), *objective.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randperm(len(data), generator=generator)[:batch]
        first, second = (head(trunk(views(data[rows], generator))) for _ in range(2))
        own = {name: values[rows] for name, values in tables.items()}
        pairs = TwoViewBatch.from_views(first, second, 1 / temperature, **own)
        optimizer.zero_grad()
        objective(pairs).loss.backward()
        optimizer.step()
        schedule.step()
    return Encoder(trunk, head)


def view(images: Tensor, generator: torch.Generator) -> Tensor:
    """One random view of each image: shift by up to an eighth, contrast, noise; never mirrored."""
    n, _, height, width = images.shape
    reach = height // 8
    padded = F.pad(images, (reach,) * 4)
    top, left = torch.randint(0, 2 * reach + 1, (2, n), generator=generator)
    rows = top[:, None] + torch.arange(height)
    columns = left[:, None] + torch.arange(width)
    places = torch.arange(n)[:, None, None]
    cut = padded.movedim(1, -1)[places, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)
    contrast = 0.6 + 0.8 * torch.rand((n, 1, 1, 1), generator=generator)
    return cut * contrast + 0.15 * torch.randn(cut.shape, generator=generator)


def _trunk(shape: tuple[int, ...]) -> nn.Module:
    """Two layers for 8 x 8 digits, resnet_tiny for larger images."""
    if shape[1] <= 8:
        inputs, relu = shape[0] * shape[1] * shape[2], nn.ReLU()
        return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 256), relu, nn.Linear(256, 128), relu)
    return nn.Sequential(ResNetRegions("resnet_tiny"), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def digits() -> Split:
    """scikit-learn's 1,797 digits of 8 x 8, a third of them for the test."""
    data = load_digits()
    images = (data.images / 16).astype(np.float32)[:, None]
    labels = data.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(labels))
    train, test = np.split(order, [len(order) * 2 // 3])
    return images[train], labels[train], images[test], labels[test]


def probe(
    train: Floats,
    labels: Integers,
    test: Floats,
    truth: Integers,
    share: float,
    seed: int,
    rare: tuple[int, ...] = (),
) -> tuple[float, float]:
    """Logistic regression on ``share`` of the labels (at least one of each class).

    Accuracy on all test images, and on the ``rare`` classes.
    """
    rng = np.random.default_rng([seed, 11])
    each = [rng.permutation(np.flatnonzero(labels == number)) for number in np.unique(labels)]
    chosen = np.concatenate([rows[: max(1, round(share * len(rows)))] for rows in each])
    scale = StandardScaler().fit(train)
    machine = LogisticRegression(max_iter=1000).fit(scale.transform(train[chosen]), labels[chosen])
    right = machine.predict(scale.transform(test)) == truth
    tail = right[np.isin(truth, rare)]
    return float(right.mean()), float(tail.mean()) if rare else float("nan")
