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
from typing import Any, ClassVar, Literal, NamedTuple

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
from studies.study import Study, average, lines, split, spread, where

Floats = NDArray[np.float64]
ALPHA, BETA, CORE, SPURIOUS = 10.0, 1 / 3, 1.0, 0.1
COLOURS = {"inside": "as in training", "test": "at random", "against": "disagree"}
TESTED_1 = {
    "all": ("contrastive", "supervised"),
    "sign disagrees": ("against", "supervised_against"),
}
"""For each test set of data model 1 the accuracies of both kinds of learning."""


class MMCLRobustness(Study):
    """Theorems 4.3-4.8, 5.2 and 5.4, and the semi-synthetic experiment."""

    name: ClassVar[str] = "mmcl-robustness"
    seconds_a_cell: ClassVar[float] = 3.0

    def cells(self) -> list[dict[str, Any]]:
        s = self.settings
        base, two = {"samples": s.samples, "tests": s.tests}, {"tests": 400}
        digits = {"part": "digits", "steps": s.digit_steps, "agree": s.digit_agree}
        parts: list[dict[str, Any]] = [{"part": "model 1", "agree": p, **base} for p in s.agree]
        parts += [
            {"part": "captions 1", "agree": s.agree[-1], "core": a, "spurious": b, **base}
            for a, b in product(s.mentioned, (0.0, 1.0))
        ]
        parts += [{"part": "model 2", "m": m, **two} for m in s.classes]
        parts += [{"part": "captions 2", "m": s.rich_classes, "pi": pi, **two} for pi in s.rich]
        parts.append(digits | {"kind": "supervised", "core": 1.0, "spurious": 1.0})
        parts += [
            digits | {"kind": "contrastive", "core": a, "spurious": b}
            for a, b in product(s.digit_mentioned, repeat=2)
        ]
        return [{**part, "seed": seed} for seed in range(s.seeds) for part in parts]

    def measure(self, cell: Cell) -> Row:
        if cell["part"] == "digits":
            mentioned = (cell["core"], cell["spurious"])
            how = {name: cell[name] for name in ("agree", "steps", "seed")}
            return accuracy(cell["kind"], mentioned, **how)
        return (_model_1 if cell["part"].endswith("1") else _model_2)(cell)

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        captions, rich = (where(rows, part=part) for part in ("captions 1", "captions 2"))
        first = [
            [f"{agree:g}", words, *(f"{v:.3f}" for v in (average(own, a), theory, average(own, b)))]
            for agree, own in split(where(rows, part="model 1"), "agree").items()
            for (words, (a, b)), theory in zip(
                TESTED_1.items(), accuracy_1(agree, CORE, SPURIOUS, 1.0), strict=True
            )
        ]
        by_core = []
        for core, own in split(captions, "core").items():
            values = [average(some, "against") for some in split(own, "spurious").values()]
            values += [own[0]["theory"], own[0]["printed"]]
            by_core.append([f"{core:g}", *(f"{value:.3f}" for value in values)])
        numbers = [
            [name, f"{value:g}", *(spread(own, side) for side in ("contrastive", "supervised"))]
            for name, every in (("m", where(rows, part="model 2")), ("pi", rich))
            for value, own in split(every, name).items()
        ]
        least = least_classes(ALPHA, BETA)
        pi = least_mentioned(rich[0]["m"], ALPHA, BETA)
        digits = []
        trained = split(where(rows, part="digits"), "kind", "core", "spurious")
        for (kind, *mentioned), own in trained.items():
            said = ["-" if kind == "supervised" else f"{pi:g}" for pi in mentioned]
            digits.append([kind, *said, *(spread(own, name) for name in COLOURS)])
        heads = (
            ["p_spu", "tested on", "contrastive", "closed form", "supervised"],
            ["pi_core", "pi_spu = 0", "pi_spu = 1", "weight linear in pi_core", "as printed"],
            ["", "value", "contrastive", "supervised"],
            ["training", "pi_core", "pi_spu", *(f"colours {words}" for words in COLOURS.values())],
        )
        return [
            Table("Data model 1", heads[0], first),
            Table("Captions in data model 1: accuracy where the sign disagrees", heads[1], by_core),
            Table(f"Data model 2: thresholds m = {least:.0f} and pi = {pi:.3f}", heads[2], numbers),
            Table("Coloured digits: accuracy, mean and sd over seeds", heads[3], digits),
        ]

    def figure(self, rows: Sequence[Row]) -> Figure:
        shown = {
            "data model 1: sign disagrees": (where(rows, part="captions 1"), "against"),
            "coloured digits, colours at random": (where(rows, kind="contrastive"), "test"),
        }
        return lines(shown, "core", "spurious")


def _model_1(cell: Cell) -> Row:
    rng = np.random.default_rng([cell["seed"], round(1000 * cell["agree"]), 1])
    n, d = cell["samples"], 2 * cell["samples"]
    sigma, core = float(np.log(n)), cell.get("core", 1.0)
    z, y, a = features_1(rng, n, cell["agree"], CORE, SPURIOUS)
    x = inputs(rng, z, d, sigma)
    text = inputs(rng, masked_1(rng, z, y, a, core, cell.get("spurious", 1.0)), d, sigma)
    seen, label, sign = features_1(rng, cell["tests"], 0.5, CORE, SPURIOUS)
    test = inputs(rng, seen, d, sigma)
    prompt = np.eye(1, d)  # the centre of class 1; that of class -1 is its negative
    row: Row = {}

    def judge(scores: Floats, *names: str) -> None:
        right = np.sign(scores) == label
        row.update(zip(names, map(float, (right.mean(), right[sign != label].mean())), strict=True))

    judge(contrastive_scores(x, text, test, prompt)[:, 0], "contrastive", "against")
    for name, weight in (("theory", core), ("printed", core**2)):
        row[name] = accuracy_1(cell["agree"], CORE, SPURIOUS, weight)[1]
    if cell["part"] == "model 1":
        scores, separable = supervised_1(x, y, test)
        row["separable"] = float(separable)
        judge(scores, "supervised", "supervised_against")
    return row


def _model_2(cell: Cell) -> Row:
    rng = np.random.default_rng([cell["seed"], cell["m"], 2])
    sampled = features_2(rng, cell["tests"], cell["m"], ALPHA, BETA, training=False)
    learned = contrastive_weights_2(cell["m"], ALPHA, BETA, cell.get("pi", 1.0))
    return {
        "contrastive": accuracy_2(*sampled, learned),
        "supervised": accuracy_2(*sampled, (1.0, ALPHA)),
    }


# --------------------------------------------------------------------------- data model 1


def features_1(
    rng: np.random.Generator, n: int, agree: float, core: float, spurious: float
) -> tuple[Floats, Floats, Floats]:
    """Features ``[n, 2]``, labels and spurious signs of Definition 4.1.

    The sign equals the label with probability ``agree``; 1/2 is the true distribution. ``core`` and
    ``spurious`` are the features' sigmas.
    """
    y = rng.choice([-1.0, 1.0], n)
    a = np.where(rng.random(n) < agree, y, -y)
    return np.c_[rng.normal(y, core), rng.normal(a, spurious)], y, a


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


def accuracy_1(agree: float, core: float, spurious: float, weight: float) -> tuple[float, float]:
    """Accuracy of the score ``(1 + weight core^2) z_core + (2 agree - 1) z_spu``.

    On all samples of the true distribution, and on those with ``a != y``. With captions that
    mention the core's variation with probability pi the ``weight`` is pi: the covariance of an
    image's variation with a caption that shows it only sometimes is pi times its variance. Theorem
    5.2 prints pi squared, which would be right were the variation scaled by pi instead of left out
    at random. Theorem 4.4, without its o(1), is weight 1.
    """
    w, s = 1 + weight * core**2, 2 * agree - 1
    spread = math.sqrt(w**2 * core**2 + s**2 * spurious**2)
    against, along = (float(1 - norm.cdf((side - w) / spread)) for side in (s, -s))
    return (against + along) / 2, against


def supervised_1(images: Floats, y: Floats, test: Floats) -> tuple[Floats, bool]:
    """Scores ``[t]`` of the maximum-margin classifier, and whether the training set was separable.

    Then it is the limit of gradient descent on logistic loss (Soudry et al. 2018).
    """
    # The machine fits an intercept; the paper's model has none, and so it is left out: the
    # margin below says whether the direction separates without it.
    machine = SVC(C=1e8, kernel="precomputed", tol=1e-4).fit(images @ images.T, y)
    weights = np.zeros(len(y))
    weights[machine.support_] = machine.dual_coef_[0]
    direction = images.T @ weights
    return np.asarray(test @ direction), bool((y * (images @ direction)).min() > 0)


# --------------------------------------------------------------------------- data model 2


def features_2(
    rng: np.random.Generator, n: int, m: int, alpha: float, beta: float, *, training: bool
) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Features ``[n, 2m]``, class number k and sign c of Definition 4.6."""
    k, c = rng.integers(0, m, n), rng.choice([-1.0, 1.0], n)
    z = rng.choice([-1.0, 1.0], (n, 2 * m)) * beta
    z[:, m:] *= alpha
    rows = np.arange(n)
    z[rows, k] = c
    z[rows, k + m] = alpha * (c if training else rng.choice([-1.0, 1.0], n))
    return z, k, c


def contrastive_weights_2(
    m: int, alpha: float, beta: float, mentioned: float = 1.0
) -> tuple[float, float]:
    """Weights of ``z_k`` and ``z_{k+m}`` in the score of class k's prompt.

    Rows of the cross-covariance between images and captions that mention what is not the
    class's own feature with probability ``mentioned`` (Definition 5.3), times m.
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


class Digits(NamedTuple):
    """Images ``[n, 192]``, captions ``[n, 2]``, class (0, 1), whether the colour is the other's."""

    images: Tensor
    captions: Tensor
    labels: NDArray[np.int64]
    against: NDArray[np.bool_]


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
    return Digits(seen, read, labels, colour != labels)


def accuracy(
    kind: Literal["supervised", "contrastive"],
    mentioned: tuple[float, float],
    *,
    agree: float,
    steps: int,
    seed: int,
) -> dict[str, float]:
    """Train on colours that agree; accuracy on the test set with colours as in `COLOURS`.

    Both train the same two-layer image network with Adam and batches of 128: ``supervised``
    by cross-entropy, ``contrastive`` by symmetric InfoNCE with a two-layer caption network;
    its prompts are the captions of each class's mean digit and a colour between the two.
    """
    rng, data = np.random.default_rng([seed, 7]), load_digits()
    pixels, digits = data.data / 16, data.target.astype(np.int64)
    order = rng.permutation(len(digits))
    first, last = np.split(order, [len(order) * 2 // 3])
    train = coloured(rng, pixels[first], digits[first], agree, mentioned)
    test = coloured(rng, pixels[last], digits[last], 0.5, mentioned)
    torch.manual_seed(seed)
    network, texts = (
        nn.Sequential(nn.Linear(inputs, 128), nn.ReLU(), nn.Linear(128, outputs))
        for inputs, outputs in ((192, 16 if kind == "contrastive" else 2), (2, 16))
    )
    scale = nn.Parameter(torch.tensor(10.0).log())
    optimizer = torch.optim.Adam([*network.parameters(), *texts.parameters(), scale], lr=1e-3)
    objective, labels = CLIP(), torch.from_numpy(train.labels)
    for _ in range(steps):
        batch = torch.from_numpy(rng.choice(len(labels), 128, replace=False))
        images = network(train.images[batch])
        if kind == "contrastive":
            captions = texts(train.captions[batch])
            pairs = ContrastiveBatch.from_embeddings(images, captions, within(scale.exp(), 1, 100))
            loss = objective(pairs).loss
        else:
            loss = F.cross_entropy(images, labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    inside = coloured(rng, pixels[last], digits[last], agree, mentioned)
    found, right = {}, np.zeros(0)
    for name, part in (("inside", inside), ("test", test)):
        with torch.no_grad():
            scores = network(part.images)
            if kind == "contrastive":
                prompts = texts(torch.tensor([[-2.5, 0.0], [2.5, 0.0]]))
                scores = F.normalize(scores, dim=1) @ F.normalize(prompts, dim=1).T
        right = scores.argmax(dim=1).numpy() == part.labels
        found[name] = float(right.mean())
    return found | {"against": float(right[test.against].mean())}
