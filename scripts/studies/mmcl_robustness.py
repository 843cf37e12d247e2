"""Robustness to spurious features: theory in closed form, and coloured digits.

Data models 1 and 2 of the paper: linear encoders under the linear contrastive loss of section 3.2
have as product ``W_I^T W_T`` the empirical cross-covariance of image and text over rho; an image
``x`` and a prompt ``p`` therefore score ``x^T S p``, with no training at all. The semi-synthetic
experiment (G.1) has the 8 x 8 digits that come with scikit-learn in the place of MNIST.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.stats import norm
from sklearn.datasets import load_digits
from sklearn.svm import SVC
from torch import Tensor, nn

from medclip_debias.bounds import within
from medclip_debias.experiments.experiment import Cell, Row
from medclip_debias.losses import CLIP, ContrastiveBatch
from medclip_debias.reporting.tables import Table
from studies.study import Study, lines, means, where

Floats = NDArray[np.float64]
ALPHA, BETA, SPURIOUS = 10.0, 1 / 3, 0.1
AGAINST = {
    "against": "contrastive, sign disagrees",
    "supervised_against": "supervised, sign disagrees",
}
COLOURS = {"inside": "as in training", "test": "at random", "against": "disagree"}


class MMCLRobustness(Study):
    """Theorems 4.3-4.8, 5.2 and 5.4, and the semi-synthetic experiment."""

    name: ClassVar[str] = "mmcl-robustness"
    seconds_a_cell: ClassVar[float] = 3.0

    def cells(self) -> list[dict[str, Any]]:
        s = self.settings
        one = {"samples": s.samples, "tests": s.tests}
        digits = {"part": "digits", "steps": s.digit_steps, "agree": s.digit_agree}
        parts: list[dict[str, Any]] = [{"part": "model 1", "agree": p, **one} for p in s.agree]
        parts += [
            {"part": "captions 1", "agree": s.agree[-1], "core": a, "spurious": b, **one}
            for a, b in product(s.mentioned, (0.0, 1.0))
        ]
        parts += [{"part": "model 2", "m": m, "tests": 400} for m in s.classes]
        parts += [
            {"part": "captions 2", "m": s.rich_classes, "pi": pi, "tests": 400} for pi in s.rich
        ]
        parts += [
            digits | {"kind": kind, "core": a, "spurious": b}
            for kind, mentioned in (("supervised", [1.0]), ("contrastive", s.digit_mentioned))
            for a, b in product(mentioned, repeat=2)
        ]
        return [{**part, "seed": seed} for seed in range(s.seeds) for part in parts]

    def measure(self, cell: Cell) -> Row:
        if cell["part"] == "digits":
            return trained_on_digits(cell)
        return (model_1 if cell["part"].endswith("1") else model_2)(cell)

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        least = least_classes(ALPHA, BETA)
        pi = least_mentioned(self.settings.rich_classes, ALPHA, BETA)
        said = [
            row | ({"core": "-", "spurious": "-"} if row["kind"] == "supervised" else {})
            for row in where(rows, part="digits")
        ]
        sides = {"contrastive": "contrastive", "supervised": "supervised"}
        mentioned = {"core": "pi_core", "spurious": "pi_spu"}
        against = {"against": "accuracy", "theory": "weight linear in pi_core"}
        two = "Data model 2: threshold"
        return [
            means("Data model 1", where(rows, part="model 1"), {"agree": "p_spu"}, sides | AGAINST),
            means(
                "Captions in data model 1: accuracy where the sign disagrees",
                where(rows, part="captions 1"),
                mentioned,
                against | {"printed": "as printed"},
            ),
            means(f"{two} m = {least:.0f}", where(rows, part="model 2"), {"m": "m"}, sides),
            means(f"{two} pi = {pi:.3f}", where(rows, part="captions 2"), {"pi": "pi"}, sides),
            means(
                "Coloured digits: accuracy, mean and sd over seeds",
                said,
                {"kind": "training"} | mentioned,
                {name: f"colours {words}" for name, words in COLOURS.items()},
            ),
        ]

    def figure(self, rows: Sequence[Row]) -> Figure:
        shown = {
            "data model 1: sign disagrees": (where(rows, part="captions 1"), "against"),
            "coloured digits, colours at random": (where(rows, kind="contrastive"), "test"),
        }
        return lines(shown, "core", "spurious")


# --------------------------------------------------------------------------- data model 1


def model_1(cell: Cell) -> Row:
    """Accuracy of both kinds of learning, on all of the true distribution and where a != y."""
    rng = np.random.default_rng([cell["seed"], round(1000 * cell["agree"]), 1])
    n, d, sigma = cell["samples"], 2 * cell["samples"], float(np.log(cell["samples"]))
    core = cell.get("core", 1.0)
    z, y, a = features_1(rng, n, cell["agree"])
    x = inputs(rng, z, d, sigma)
    text = inputs(rng, masked_1(rng, z, y, a, core, cell.get("spurious", 1.0)), d, sigma)
    seen, label, sign = features_1(rng, cell["tests"], 0.5)
    test = inputs(rng, seen, d, sigma)
    prompt = np.eye(1, d)  # the centre of class 1; that of class -1 is its negative
    row: Row = {}

    def judge(scores: Floats, *names: str) -> None:
        right = np.sign(scores) == label
        row.update(zip(names, map(float, (right.mean(), right[sign != label].mean())), strict=True))

    judge(contrastive_scores(x, text, test, prompt)[:, 0], "contrastive", "against")
    for name, weight in (("theory", core), ("printed", core**2)):
        row[name] = accuracy_1(cell["agree"], weight)
    if cell["part"] == "model 1":
        judge(supervised_1(x, y, test), "supervised", "supervised_against")
    return row


def features_1(
    rng: np.random.Generator, n: int, agree: float, spurious: float = SPURIOUS
) -> tuple[Floats, Floats, Floats]:
    """Features ``[n, 2]`` (sigmas 1 and ``spurious``), labels, spurious signs of Definition 4.1.

    The sign equals the label with probability ``agree``; 1/2 is the true distribution.
    """
    y = rng.choice([-1.0, 1.0], n)
    a = np.where(rng.random(n) < agree, y, -y)
    return np.c_[rng.normal(y, 1.0), rng.normal(a, spurious)], y, a


def masked_1(
    rng: np.random.Generator, z: Floats, y: Floats, a: Floats, core: float, spurious: float
) -> Floats:
    """Captions of Definition 5.1: each variation is mentioned with its probability."""
    keep = rng.random(z.shape) < np.array([core, spurious])
    centre = np.c_[y, a]
    return np.asarray(centre + keep * (z - centre))


def inputs(rng: np.random.Generator, z: Floats, dimension: int, sigma: float) -> Floats:
    """``D z`` plus noise ``N(0, sigma^2 / d I)``: ``[n, d]``.

    The dictionary ``D`` is the first columns of the identity: the noise is isotropic, so any
    orthonormal dictionary gives the same distribution.
    """
    x = rng.normal(0, sigma / math.sqrt(dimension), (len(z), dimension))
    x[:, : z.shape[1]] += z
    return x


def contrastive_scores(images: Floats, texts: Floats, test: Floats, prompts: Floats) -> Floats:
    """``test S prompts^T`` with the exact minimiser's ``S`` of the linear loss: ``[t, prompts]``.

    ``S = 1/n sum_i x_i t_i^T - 1/(n (n - 1)) sum_{i != j} x_i t_j^T``, never formed.
    """
    n, along = len(images), texts @ prompts.T
    paired = images.T @ along / n
    crossed = (np.outer(images.sum(0), along.sum(0)) - images.T @ along) / (n * (n - 1))
    return np.asarray(test @ (paired - crossed))


def accuracy_1(agree: float, weight: float, spurious: float = SPURIOUS) -> float:
    """Accuracy of the score ``(1 + weight) z_core + (2 agree - 1) z_spu`` where ``a != y``.

    With captions that mention the core's variation with probability pi the ``weight`` is pi: the
    covariance of an image's variation with a caption that shows it only sometimes is pi times its
    variance. Theorem 5.2 prints pi squared, which would be right were the variation scaled by pi
    instead of left out at random. Theorem 4.4, without its o(1), is weight 1.
    """
    w, s = 1 + weight, 2 * agree - 1
    return float(1 - norm.cdf((s - w) / math.sqrt(w**2 + s**2 * spurious**2)))


def supervised_1(images: Floats, y: Floats, test: Floats) -> Floats:
    """Scores ``[t]`` of the maximum-margin classifier, without the intercept that it is fit with.

    On a separable set it is the limit of gradient descent on logistic loss (Soudry et al. 2018).
    """
    machine = SVC(C=1e8, kernel="precomputed", tol=1e-4).fit(images @ images.T, y)
    direction = images[machine.support_].T @ machine.dual_coef_[0]
    return np.asarray(test @ direction)


# --------------------------------------------------------------------------- data model 2


def model_2(cell: Cell) -> Row:
    """Accuracy of both solutions on the true distribution."""
    rng = np.random.default_rng([cell["seed"], cell["m"], 2])
    sampled = features_2(rng, cell["tests"], cell["m"], ALPHA, BETA)
    learned = contrastive_weights_2(cell["m"], ALPHA, BETA, cell.get("pi", 1.0))
    return {
        "contrastive": accuracy_2(*sampled, learned),
        "supervised": accuracy_2(*sampled, (1.0, ALPHA)),
    }


def features_2(
    rng: np.random.Generator, n: int, m: int, alpha: float, beta: float
) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Features ``[n, 2m]`` of the true distribution, class number k and sign c, Definition 4.6."""
    k, c = rng.integers(0, m, n), rng.choice([-1.0, 1.0], n)
    z = rng.choice([-1.0, 1.0], (n, 2 * m)) * beta
    z[:, m:] *= alpha
    rows = np.arange(n)
    z[rows, k] = c
    z[rows, k + m] = alpha * rng.choice([-1.0, 1.0], n)
    return z, k, c


def contrastive_weights_2(
    m: int, alpha: float, beta: float, mentioned: float = 1.0
) -> tuple[float, float]:
    """Weights of ``z_k`` and ``z_{k+m}`` in the score of class k's prompt.

    Times m, with captions that mention what is not the class's own feature with probability
    ``mentioned`` (Definition 5.3).
    """
    return 1 + (m - 1) * beta**2 * mentioned, alpha


def accuracy_2(z: Floats, k: NDArray[np.int64], c: Floats, weights: tuple[float, float]) -> float:
    """Share of samples whose own class scores highest; a tie is an error.

    The maximum-margin classifier has weights ``(1, alpha)``: permuting classes, and flipping
    ``z_j``, ``z_{j+m}`` and class j's sign together, map the data of Theorem 4.7 to themselves, so
    the solution of least norm has for class (k, c) nothing but ``c (w1 e_k + w2 e_{k+m})``; its
    margins depend on ``w1 + alpha w2`` alone, of which ``(1, alpha)`` has the least norm.
    """
    m = z.shape[1] // 2
    score = weights[0] * z[:, :m] + weights[1] * z[:, m:]  # [n, m] for c = 1, its negative for -1
    rows = np.arange(len(z))
    own, others = c * score[rows, k], np.abs(score)
    others[rows, k] = -own  # the same k with the other sign
    return float((own > others.max(axis=1)).mean())


def least_classes(alpha: float, beta: float) -> float:
    """Theorem 4.8: contrastive learning is always right for m above this."""
    return (alpha**2 * (1 + beta) / (1 - beta) - 1 + beta**2) / beta**2


def least_mentioned(m: int, alpha: float, beta: float) -> float:
    """Theorem 5.4: the threshold ``pi~`` of caption richness."""
    return ((1 + beta) * alpha**2 - 1 + beta) / ((1 - beta) * beta**2 * (m - 1))


# -------------------------------------------------------------------------- coloured digits

SHADES = np.array(
    [[0, 0, 0.6], [0.1, 0.1, 0.8], [0.2, 0.2, 1], [0.6, 0, 0], [0.8, 0.1, 0.1], [1, 0.2, 0.2]]
)
"""Red, green and blue: three shades of blue, three of red."""
Digits = tuple[Tensor, Tensor, NDArray[np.int64], NDArray[np.bool_]]
"""Images ``[n, 192]``, captions ``[n, 2]``, class (0, 1), whether the colour is the other's."""


def coloured(
    rng: np.random.Generator,
    images: Floats,
    digits: NDArray[np.int64],
    agree: float,
    mentioned: tuple[float, float],
) -> Digits:
    """Colour the background of grey images ``[n, 64]``, and write captions.

    Digits 0 to 4 are class 0 (blue in training), the others class 1 (red); a share ``agree`` has
    its class's colour. A caption names digit and shade, as their distance to the middle, with the
    probabilities ``mentioned``, else the mean of the class's digits, of the colour's shades.
    """
    n = len(digits)
    labels = (digits >= 5).astype(np.int64)
    colour = np.where(rng.random(n) < agree, labels, 1 - labels)
    shade = 3 * colour + rng.integers(0, 3, n)
    grey = images[:, :, None]
    painted = (grey + (1 - grey) * SHADES[shade][:, None, :]).reshape(n, -1)
    means = np.c_[5 * labels - 2.5, 3 * colour - 1.5]
    names = rng.random((n, 2)) < np.array(mentioned)
    captions = np.where(names, np.c_[digits - 4.5, shade - 2.5], means)
    seen, read = (torch.from_numpy(values).float() for values in (painted, captions))
    return seen, read, labels, colour != labels


def trained_on_digits(cell: Cell) -> Row:
    """Train on colours that agree; accuracy on the test set with colours as in `COLOURS`.

    ``supervised`` trains a two-layer image network by cross-entropy, ``contrastive`` the same one
    by symmetric InfoNCE with a two-layer caption network; its prompts are the captions of each
    class's mean digit and a colour between the two.
    """
    rng, data = np.random.default_rng([cell["seed"], 7]), load_digits()
    pixels, digits, contrastive = data.data / 16, data.target, cell["kind"] == "contrastive"
    first, last = np.split(rng.permutation(len(digits)), [len(digits) * 2 // 3])
    mentioned = cell["core"], cell["spurious"]
    train = coloured(rng, pixels[first], digits[first], cell["agree"], mentioned)
    test = coloured(rng, pixels[last], digits[last], 0.5, mentioned)
    torch.manual_seed(cell["seed"])
    network, texts = (
        nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, outputs))
        for inputs, outputs in ((192, 16 if contrastive else 2), (2, 16))
    )
    scale = nn.Parameter(torch.tensor(10.0).log())
    optimizer = torch.optim.Adam([*network.parameters(), *texts.parameters(), scale], lr=1e-3)
    objective, labels = CLIP(), torch.from_numpy(train[2])
    for _ in range(cell["steps"]):
        batch = torch.from_numpy(rng.choice(len(labels), 128, replace=False))
        images = network(train[0][batch])
        if contrastive:
            bounded = within(scale.exp(), 1, 100)
            pairs = ContrastiveBatch.from_embeddings(images, texts(train[1][batch]), bounded)
            loss = objective(pairs).loss
        else:
            loss = F.cross_entropy(images, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    inside = coloured(rng, pixels[last], digits[last], cell["agree"], mentioned)

    @torch.no_grad()
    def right(part: Digits) -> NDArray[np.bool_]:
        scores = network(part[0])
        if contrastive:
            prompts = texts(torch.tensor([[-2.5, 0.0], [2.5, 0.0]]))
            scores = F.normalize(scores, dim=1) @ F.normalize(prompts, dim=1).T
        return np.asarray(scores.argmax(dim=1).numpy() == part[2])

    found, against = right(test), test[3]
    parts = {"inside": right(inside), "test": found, "against": found[against]}
    return {name: float(values.mean()) for name, values in parts.items()}
