"""Data models 1 and 2 of the robustness paper, and their closed-form linear solutions.

Linear encoders under the linear contrastive loss of section 3.2 have as product
``W_I^T W_T`` the empirical cross-covariance of image and text over rho; an image ``x`` and a
prompt ``p`` therefore score ``x^T S p``, with no training at all.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


# --------------------------------------------------------------------------- data model 1


def features_1(
    rng: np.random.Generator, n: int, agree: float, core: float, spurious: float
) -> tuple[Floats, Floats, Floats]:
    """Features ``[n, 2]``, labels and spurious signs of Definition 4.1.

    Args:
        rng: source of every number.
        n: samples.
        agree: probability that the spurious sign equals the label; 1/2 is the true distribution.
        core: sigma of the core feature.
        spurious: sigma of the spurious one.
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

    With captions that mention the core's variation with probability pi the ``weight`` is pi: the
    covariance of an image's variation with a caption that shows it only sometimes is pi times its
    variance. Theorem 5.2 prints pi squared, which would be right were the variation scaled by pi
    instead of left out at random. Theorem 4.4, without its o(1), is weight 1.

    Returns:
        On all samples of the true distribution, and on those with ``a != y``.
    """
    from scipy.stats import norm

    w, s = 1 + weight * core**2, 2 * agree - 1
    spread = math.sqrt(w**2 * core**2 + s**2 * spurious**2)
    against, along = (float(1 - norm.cdf((side - w) / spread)) for side in (s, -s))
    return (against + along) / 2, against


def supervised_1(
    images: Floats, y: Floats, test: Floats, tolerance: float = 1e-4
) -> tuple[Floats, bool]:
    """Scores of the maximum-margin classifier that gradient descent on logistic loss reaches.

    Returns:
        ``[t]`` scores, and whether the training set was separable (then the direction is the
        limit of gradient descent; Soudry et al. 2018).
    """
    from sklearn.svm import SVC

    # The machine fits an intercept; the paper's model has none, and so it is left out: the
    # margin below says whether the direction separates without it.
    machine = SVC(C=1e8, kernel="precomputed", tol=tolerance).fit(images @ images.T, y)
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
