"""Digits on coloured backgrounds: the semi-synthetic experiment of the robustness paper (G.1).

The paper takes MNIST; here the 8 x 8 digits that come with scikit-learn, so that nothing has to
be downloaded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Floats = NDArray[np.float64]

# Shades as (red, green, blue): three of blue, three of red.
SHADES = np.array(
    [
        [0.0, 0.0, 0.6],
        [0.1, 0.1, 0.8],
        [0.2, 0.2, 1.0],
        [0.6, 0.0, 0.0],
        [0.8, 0.1, 0.1],
        [1.0, 0.2, 0.2],
    ]
)
# Caption coordinates: digits -4.5 .. 4.5, shades -2.5 .. 2.5, class and colour means between.
DIGIT_VALUES = np.arange(10) - 4.5
SHADE_VALUES = np.arange(6) - 2.5


@dataclass(frozen=True)
class Digits:
    """Images ``[n, 192]``, captions ``[n, 2]``, class (0, 1), whether the colour is the other's."""

    images: Floats
    captions: Floats
    labels: NDArray[np.int64]
    against: NDArray[np.bool_]


def coloured(
    rng: np.random.Generator,
    images: Floats,
    digits: NDArray[np.int64],
    agree: float,
    mentioned: tuple[float, float],
) -> Digits:
    """Colour the background, and write captions.

    Args:
        rng: source of every number.
        images: ``[n, 64]`` grey in 0..1.
        digits: 0..9; 0 to 4 are class 0 (blue in training), the others class 1 (red).
        agree: share of images with their class's colour.
        mentioned: probability that a caption names the digit, and the shade; otherwise it has
            the mean of the class's digits, of the colour's shades.
    """
    n = len(digits)
    labels = (digits >= 5).astype(np.int64)
    colour = np.where(rng.random(n) < agree, labels, 1 - labels)
    shade = 3 * colour + rng.integers(0, 3, n)
    grey = images[:, :, None]
    painted = grey + (1 - grey) * SHADES[shade][:, None, :]
    digit_mean = np.where(labels == 0, DIGIT_VALUES[:5].mean(), DIGIT_VALUES[5:].mean())
    shade_mean = np.where(colour == 0, SHADE_VALUES[:3].mean(), SHADE_VALUES[3:].mean())
    names = rng.random((n, 2)) < np.array(mentioned)
    captions = np.c_[
        np.where(names[:, 0], DIGIT_VALUES[digits], digit_mean),
        np.where(names[:, 1], SHADE_VALUES[shade], shade_mean),
    ]
    return Digits(painted.reshape(n, -1), captions, labels, colour != labels)


def accuracy(
    kind: Literal["supervised", "contrastive"],
    mentioned: tuple[float, float],
    *,
    agree: float,
    steps: int,
    seed: int,
) -> dict[str, float]:
    """Train on colours that agree, test on colours at random.

    Both train the same two-layer image network with Adam and batches of 128: ``supervised``
    by cross-entropy, ``contrastive`` by symmetric InfoNCE with a two-layer caption network;
    its prompts are the captions of each class's mean digit and a colour between the two.

    Returns:
        Accuracy on the test set, where the colour is the other class's, and on colours that
        agree (in distribution).
    """
    import torch
    import torch.nn.functional as F
    from sklearn.datasets import load_digits

    from medclip_debias.bounds import within
    from medclip_debias.losses import CLIP, ContrastiveBatch

    rng, data = np.random.default_rng([seed, 7]), load_digits()
    pixels, digits = data.data / 16, data.target.astype(np.int64)
    order = rng.permutation(len(digits))
    cut = len(order) * 2 // 3
    train = coloured(rng, pixels[order[:cut]], digits[order[:cut]], agree, mentioned)
    test = coloured(rng, pixels[order[cut:]], digits[order[cut:]], 0.5, mentioned)
    torch.manual_seed(seed)
    network = _network(train.images.shape[1], 16 if kind == "contrastive" else 2)
    texts = _network(2, 16)
    scale = torch.nn.Parameter(torch.tensor(10.0).log())
    parameters = [*network.parameters(), *texts.parameters(), scale]
    optimizer = torch.optim.Adam(parameters, lr=1e-3)
    x, t, y = (_tensor(v) for v in (train.images, train.captions, train.labels))
    objective = CLIP()
    for _ in range(steps):
        batch = torch.from_numpy(rng.choice(len(x), 128, replace=False))
        if kind == "contrastive":
            pairs = ContrastiveBatch.from_embeddings(
                network(x[batch]), texts(t[batch]), within(scale.exp(), 1, 100)
            )
            loss = objective(pairs).loss
        else:
            loss = F.cross_entropy(network(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        inside = coloured(rng, pixels[order[cut:]], digits[order[cut:]], agree, mentioned)
        found = {}
        for name, part in (("test", test), ("inside", inside)):
            scores = network(_tensor(part.images))
            if kind == "contrastive":
                means = [DIGIT_VALUES[:5].mean(), DIGIT_VALUES[5:].mean()]
                prompts = _tensor(np.array([[value, 0.0] for value in means]))
                scores = F.normalize(scores, dim=1) @ F.normalize(texts(prompts), dim=1).T
            right = scores.argmax(dim=1).numpy() == part.labels
            found[name] = float(right.mean())
            if name == "test":
                found["against"] = float(right[part.against].mean())
    return found


def _network(inputs: int, outputs: int) -> torch.nn.Module:
    from torch import nn

    return nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, outputs))


def _tensor(values: NDArray[np.generic]) -> Tensor:
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor.float() if tensor.is_floating_point() else tensor
