"""How well false negatives are found, on a set whose truth is known (`medclip_debias.phantom`).

A negative is a sentence with the image of another study; it is false when that image agrees
with the sentence. Detectors: the model's own similarity (the most similar share of each
sentence's negatives, as FNC and GloFND do), shared positive labels, the same sentence in the
other study's report.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]


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
