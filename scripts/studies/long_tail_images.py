"""Image sets, class probabilities and the linear probe of the long-tailed study."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import UserError

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


def long_tailed(
    labels: Integers,
    share: float,
    rng: np.random.Generator,
    classes: int = 10,
    rare: tuple[int, ...] = RARE,
) -> Integers:
    """Rows that stay when of each class in ``rare`` only ``share`` is kept, at least two."""
    kept = []
    for number in range(classes):
        rows = rng.permutation(np.flatnonzero(labels == number))
        keep = max(2, round(share * len(rows))) if number in rare else len(rows)
        kept.append(rows[:keep])
    return np.sort(np.concatenate(kept))


def etas(
    kind: str, share: float, labels: Integers, classes: int = 10, rare: tuple[int, ...] = RARE
) -> Floats:
    """Class probability of each image: the paper's eta_low, eta_high, or the true one.

    ``eta_low = 0.2 r / (1 + r)`` is that of a subsampled class, ``eta_high = 0.2 / (1 + r)`` that
    of a whole one (section 3.1, where half of 10 equal classes are rare; with K classes 2 / K takes
    the place of 0.2); ``none`` is plain contrastive learning.
    """
    whole = 2 / classes
    low, high = whole * share / (1 + share), whole / (1 + share)
    match kind:
        case "none":
            return np.zeros(len(labels), np.float32)
        case "low":
            return np.full(len(labels), low, np.float32)
        case "high":
            return np.full(len(labels), high, np.float32)
        case "true":
            return np.where(np.isin(labels, rare), low, high).astype(np.float32)
    raise ValueError(kind)


def probe(
    train: Floats,
    labels: Integers,
    test: Floats,
    truth: Integers,
    share: float,
    seed: int,
    classes: int = 10,
    rare: tuple[int, ...] = RARE,
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
            for rows in (np.flatnonzero(labels == number) for number in range(classes))
        ]
    )
    scale = StandardScaler().fit(train)
    machine = LogisticRegression(max_iter=1000).fit(scale.transform(train[chosen]), labels[chosen])
    right = machine.predict(scale.transform(test)) == truth
    tail = np.isin(truth, rare)
    return float(right.mean()), float(right[tail].mean()), float(right[~tail].mean())
