"""Image sets, views and training for the long-tailed study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import UserError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
# CIFAR-10's dog, frog, horse, ship, truck; of the digits likewise 5 to 9.
RARE = (5, 6, 7, 8, 9)


def load(name: str, root: str | None) -> tuple[Floats, Integers, Floats, Integers]:
    """Training and test images ``[n, C, H, W]`` in 0..1 with their classes 0..9.

    Args:
        name: ``digits`` (of scikit-learn, nothing to download; a third is the test set) or
            ``cifar10``.
        root: folder with ``cifar-10-batches-py``.

    Raises:
        UserError: CIFAR-10 is not there.
    """
    if name == "digits":
        from sklearn.datasets import load_digits

        data = load_digits()
        images = (data.images / 16).astype(np.float32)[:, None]
        labels = data.target.astype(np.int64)
        order = np.random.default_rng(0).permutation(len(labels))
        cut = len(order) * 2 // 3
        train, test = order[:cut], order[cut:]
        return images[train], labels[train], images[test], labels[test]
    from torchvision.datasets import CIFAR10

    try:
        parts = [CIFAR10(root or "", train=part, download=False) for part in (True, False)]
    except RuntimeError as error:
        raise UserError(
            f"{Path(root or '.')}: holds no CIFAR-10; put the folder cifar-10-batches-py there and "
            "name it with root=FOLDER, or take data=digits."
        ) from error
    found: list[NDArray[np.generic]] = []
    for part in parts:
        found.append((part.data.transpose(0, 3, 1, 2) / 255).astype(np.float32))
        found.append(np.array(part.targets, dtype=np.int64))
    return tuple(found)  # type: ignore[return-value]


def long_tailed(labels: Integers, share: float, rng: np.random.Generator) -> Integers:
    """Rows that stay when of each class in `RARE` only ``share`` is kept, at least two."""
    kept = []
    for number in range(10):
        rows = rng.permutation(np.flatnonzero(labels == number))
        keep = max(2, round(share * len(rows))) if number in RARE else len(rows)
        kept.append(rows[:keep])
    return np.sort(np.concatenate(kept))


def etas(kind: str, share: float, labels: Integers) -> Floats:
    """Class probability of each image: the paper's eta_low, eta_high, or the true one.

    ``eta_low = 0.2 r / (1 + r)`` is that of a subsampled class, ``eta_high = 0.2 / (1 + r)`` that
    of a whole one (section 3.1); ``none`` is plain contrastive learning.
    """
    low, high = 0.2 * share / (1 + share), 0.2 / (1 + share)
    match kind:
        case "none":
            return np.zeros(len(labels), np.float32)
        case "low":
            return np.full(len(labels), low, np.float32)
        case "high":
            return np.full(len(labels), high, np.float32)
        case "true":
            return np.where(np.isin(labels, RARE), low, high).astype(np.float32)
    raise ValueError(kind)


def view(images: Tensor, generator: torch.Generator) -> Tensor:
    """One random view of each image: shift by up to an eighth, contrast, noise.

    No mirror image: it would make other digits of some.
    """
    import torch
    import torch.nn.functional as F

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


def features(
    images: Floats,
    eta: Floats,
    others: Floats,
    *,
    steps: int,
    batch: int,
    temperature: float,
    seed: int,
) -> tuple[Floats, Floats]:
    """Train SimCLR under the debiased loss; embed training and test images.

    Args:
        images: training images ``[n, C, H, W]``.
        eta: ``[n]`` class probability of each.
        others: test images.
        steps: of Adam, learning rate 1e-3 with a cosine to 0.
        batch: images a step.
        temperature: tau; the similarity's scale is ``1 / tau``.
        seed: of everything.

    Returns:
        Features before the projection head, ``[n, F]`` and ``[t, F]``.
    """
    import torch

    from medclip_debias.losses import (
        DebiasedContrastive,
        DebiasedSettings,
        TableEta,
        TwoViewBatch,
    )

    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    trunk = _trunk(images.shape[1:])
    data = torch.from_numpy(images)
    width = trunk(data[:1]).shape[1]
    head = torch.nn.Sequential(
        torch.nn.Linear(width, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64)
    )
    loss = DebiasedContrastive(DebiasedSettings(eta=TableEta()))
    table = torch.from_numpy(eta)
    optimizer = torch.optim.Adam([*trunk.parameters(), *head.parameters()], lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randperm(len(data), generator=generator)[:batch]
        first, second = (head(trunk(view(data[rows], generator))) for _ in range(2))
        pairs = TwoViewBatch.from_views(first, second, 1 / temperature, eta=table[rows])
        optimizer.zero_grad()
        loss(pairs).loss.backward()
        optimizer.step()
        schedule.step()
    trunk.eval()
    with torch.no_grad():
        return trunk(data).numpy(), trunk(torch.from_numpy(others)).numpy()


def _trunk(shape: tuple[int, ...]) -> torch.nn.Module:
    """Two layers for 8 x 8 digits, a ResNet-18 with a small stem for CIFAR-10."""
    from torch import nn

    if shape[1] <= 8:
        inputs = shape[0] * shape[1] * shape[2]
        return nn.Sequential(
            nn.Flatten(), nn.Linear(inputs, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU()
        )
    from torchvision.models import resnet18

    network = resnet18(weights=None)
    network.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    network.maxpool = nn.Identity()
    network.fc = nn.Identity()
    return network


def probe(
    train: Floats, labels: Integers, test: Floats, truth: Integers, share: float, seed: int
) -> tuple[float, float, float]:
    """Logistic regression on ``share`` of the labels (at least one of each class).

    Returns:
        Accuracy on all test images, on the rare classes, on the others.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    rng = np.random.default_rng([seed, 11])
    chosen = np.concatenate(
        [
            rng.permutation(rows)[: max(1, round(share * len(rows)))]
            for rows in (np.flatnonzero(labels == number) for number in range(10))
        ]
    )
    scale = StandardScaler().fit(train)
    machine = LogisticRegression(max_iter=1000).fit(scale.transform(train[chosen]), labels[chosen])
    right = machine.predict(scale.transform(test)) == truth
    rare = np.isin(truth, RARE)
    return float(right.mean()), float(right[rare].mean()), float(right[~rare].mean())
