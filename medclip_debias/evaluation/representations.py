"""What the representations hold: linear probe, nearest neighbours, alignment, uniformity.

And how well false negatives are found, on a set whose truth is known (`medclip_debias.phantom`).
A negative is a sentence with the image of another study; it is false when that image agrees
with the sentence. Detectors: the model's own similarity (the most similar share of each
sentence's negatives, as FNC and GloFND do), shared positive labels, the same sentence in the
other study's report.

Everything here works on plain arrays; `medclip_debias.evaluation.probe` reads them off a model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.evaluation.bootstrap import weighted_auc
from medclip_debias.evaluation.protocol import Draw

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def alignment(first: Floats, second: Floats) -> float:
    """Mean squared distance of paired unit vectors ``[n, D]``: 0 is perfect, 2 is the chance level.

    Wang and Isola (2020), equation 4 with alpha = 2.
    """
    return float(((first - second) ** 2).sum(axis=1).mean())


def uniformity(vectors: Floats, block: int = 1024) -> float:
    """Log of the mean of ``exp(-2 d^2)`` over all pairs of different unit vectors ``[n, D]``.

    Wang and Isola (2020), equation 5 with t = 2: 0 when all are the same, -4 for vectors spread
    evenly over a sphere of many dimensions.
    """
    n = len(vectors)
    if n < 2:
        raise UserError("uniformity needs at least two vectors.")
    total = 0.0
    for start in range(0, n, block):
        cosine = vectors[start : start + block] @ vectors.T
        # d^2 = 2 - 2 cos for unit vectors; the pair of a vector with itself is taken out below.
        total += float(np.exp(-2 * (2 - 2 * cosine)).sum())
    own = float(np.exp(-2 * (2 - 2 * (vectors**2).sum(axis=1))).sum())
    return float(np.log((total - own) / (n * (n - 1))))


def nearest_neighbours(
    train: Floats, labels: NDArray[np.float64], test: Floats, k: int
) -> NDArray[np.float64]:
    """Share of positives among each test vector's ``k`` most similar training vectors ``[t]``.

    Vectors ``[n, D]`` and ``[t, D]`` are of unit length.
    """
    from sklearn.neighbors import KNeighborsRegressor

    if not 1 <= k <= len(train):
        raise UserError(f"{k} neighbours cannot be taken from {len(train)} training images.")
    machine = KNeighborsRegressor(k, metric="cosine", algorithm="brute").fit(train, labels)
    shares: NDArray[np.float64] = machine.predict(test)
    return shares


def few_labels(
    labels: NDArray[np.float64], patients: Sequence[str], share: float, rng: np.random.Generator
) -> NDArray[np.int64]:
    """Rows of a random ``share`` of the patients that holds both label values.

    Patients come in one random order, and more are taken until both values are there, so that
    a smaller share is part of a larger one under the same ``rng`` state.
    """
    names, of_row = np.unique(np.asarray(patients, dtype=str), return_inverse=True)
    order = rng.permutation(len(names))
    rank = np.empty(len(names), dtype=np.int64)
    rank[order] = np.arange(len(names))
    place = rank[of_row]
    least = max(place[labels == value].min() for value in (0.0, 1.0)) + 1
    return np.flatnonzero(place < max(round(share * len(names)), least))


def linear_probe(
    train: Floats, labels: NDArray[np.float64], test: Floats, cost: float = 1.0
) -> NDArray[np.float64]:
    """Scores ``[t]`` of logistic regression on standardised features.

    ``cost`` is the inverse strength of the L2 penalty.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    scale = StandardScaler().fit(train)
    machine = LogisticRegression(C=cost, max_iter=2000).fit(scale.transform(train), labels)
    scores: NDArray[np.float64] = machine.decision_function(scale.transform(test))
    return scores


def auc_with_interval(
    scores: NDArray[np.float64], labels: NDArray[np.float64], patients: Sequence[str], draw: Draw
) -> dict[str, Any]:
    """AUC and its bootstrap interval over patients."""
    positive = labels == 1
    found = draw.estimates(
        lambda weights: {"auc": weighted_auc(positive, scores, weights)}, patients
    )
    return {"auc": found["auc"].value, "interval": found["auc"].interval}


# --------------------------------------------------------------------- false negatives


def detection(removed: Bools, false: Bools, negatives: Bools) -> dict[str, float | None]:
    """Precision, recall and F1 of the removed negatives.

    All are ``[T, I]``; only ``negatives`` count. Precision is None when nothing was removed, recall
    when nothing is false.
    """
    taken, wrong = removed & negatives, false & negatives
    both = int((taken & wrong).sum())
    total, real = int(taken.sum()), int(wrong.sum())
    return {
        "precision": both / total if total else None,
        "recall": both / real if real else None,
        "f1": 2 * both / (total + real) if total + real else None,
        "removed": total / max(int(negatives.sum()), 1),
    }


def most_similar(scores: NDArray[np.floating], negatives: Bools, share: float) -> Bools:
    """The ``share`` most similar negatives of each sentence, as `losses.fnc` counts them.

    Of ``[T, I]``, the ``ceil(share (N - 1))`` largest, at least one when the share is above 0.
    """
    count = np.ceil(share * (negatives.sum(axis=1) - 1) - 1e-9).astype(int)
    count = np.maximum(count, 1 if share > 0 else 0)
    order = np.argsort(np.where(negatives, -scores, np.inf), axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    return np.asarray((rank < count[:, None]) & negatives)


def detectors(
    scores: NDArray[np.floating],
    agree: Bools,
    negatives: Bools,
    same_label: Bools | None,
    same_text: Bools,
    shares: tuple[float, ...],
) -> dict[str, Any]:
    """Every detector's metrics, the rate of false negatives, and the similarity's ranking.

    All are ``[T, I]``: ``agree`` is the truth, ``negatives`` pairs with another study's image,
    ``shares`` what the similarity removes of each sentence's negatives.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    truth, values = agree[negatives], scores[negatives]
    both = 0 < truth.sum() < truth.size
    found: dict[str, Any] = {
        "negatives": int(negatives.sum()),
        "false_rate": float(truth.mean()),
        "same text": detection(same_text, agree, negatives),
    }
    if same_label is not None:
        found["shared label"] = detection(same_label, agree, negatives)
    for share in shares:
        removed = most_similar(scores, negatives, share)
        found[f"most similar {share:g}"] = detection(removed, agree, negatives)
    found["similarity"] = {
        "average_precision": float(average_precision_score(truth, values)) if both else None,
        "auc": float(roc_auc_score(truth, values)) if both else None,
    }
    return found
