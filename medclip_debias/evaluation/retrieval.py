"""Box-sentence retrieval, both ways.

A box's feature is the mean of the unit region vectors inside it (RoIAlign, then the mean over
the union's boxes), brought to unit length; its score with a sentence is their cosine. Each
sentence ranks all boxes and each box ranks all sentences, one candidate for each phrase.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.evaluation.bootstrap import (
    bootstrap_intervals,
    weighted_mean,
    weighted_median,
)
from medclip_debias.evaluation.metrics import first_relevant_rank, median_rank, recall_at

Floats = NDArray[np.float64]
RECALLS = (10, 50, 100)
DIRECTIONS = ("sentence_to_box", "box_to_sentence")


def pair_scores(
    box_features: NDArray[np.floating],
    sentence_features: NDArray[np.floating],
    sentence_of: NDArray[np.integer],
) -> Floats:
    """Cosines ``[boxes, phrases]``.

    Identical sentences get bit-identical columns, so that their ties are ties.

    Args:
        box_features: ``[phrases, D]``, any length.
        sentence_features: unit vectors of the distinct sentences, ``[T, D]``.
        sentence_of: for each phrase the row of its sentence.
    """
    boxes = np.asarray(box_features, dtype=np.float64)
    length = np.linalg.norm(boxes, axis=1, keepdims=True)
    unit = boxes / np.where(length > 0, length, 1)
    scores: Floats = unit @ np.asarray(sentence_features, dtype=np.float64).T
    return scores[:, sentence_of]


def retrieval(
    scores: Floats,
    texts: Sequence[str],
    patients: Sequence[str],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Any]:
    """R@10, R@50, R@100 and median rank in both directions, strict and lenient.

    ``strict``: only the phrase that the query belongs to counts; phrases with the same
    sentence are ties when boxes rank sentences, and rivals when sentences rank boxes.
    ``lenient``: any phrase with the same sentence counts. The unnamed figures on top are the
    strict ones, as the paper defines them.

    Intervals redraw the patients of the queries; the candidates stay as they are.

    Args:
        scores: ``[boxes, phrases]``, the diagonal holds the pairs.
        texts: sentence of each phrase.
        patients: patient of each phrase.
        resamples: bootstrap resamples of the patients.
        seed: of the bootstrap.
    """
    codes = np.unique(np.asarray(texts, dtype=object).astype(str), return_inverse=True)[1]
    same = codes[:, None] == codes[None, :]
    modes = {
        "strict": _measure(scores, np.eye(len(texts), dtype=bool), patients, resamples, seed),
        "lenient": _measure(scores, same, patients, resamples, seed),
    }
    n = len(texts)
    strict = modes["strict"]
    return {
        "recall": strict["recall"],
        "median_rank": strict["median_rank"],
        "interval": strict["interval"],
        **modes,
        "phrases": n,
        "distinct_sentences": len(set(texts)),
        "chance": {
            "recall": float(np.mean([min(k, n) / n for k in RECALLS])),
            "median_rank": (n + 1) / 2,
        },
    }


def _measure(
    scores: Floats,
    relevant: NDArray[np.bool_],
    patients: Sequence[str],
    resamples: int,
    seed: int,
) -> dict[str, Any]:
    ranks = {
        "sentence_to_box": first_relevant_rank(scores.T, relevant.T),
        "box_to_sentence": first_relevant_rank(scores, relevant),
    }
    result: dict[str, Any] = {
        way: {
            **{f"recall_at_{k}": recall_at(ranks[way], k) for k in RECALLS},
            "median_rank": median_rank(ranks[way]),
        }
        for way in DIRECTIONS
    }
    result["recall"] = float(
        np.mean([result[way][f"recall_at_{k}"] for way in DIRECTIONS for k in RECALLS])
    )
    result["median_rank"] = float(np.mean([result[way]["median_rank"] for way in DIRECTIONS]))

    def statistics(weights: Floats) -> dict[str, Floats]:
        hits = [weighted_mean(ranks[way] <= k, weights) for way in DIRECTIONS for k in RECALLS]
        medians = [weighted_median(ranks[way], weights) for way in DIRECTIONS]
        return {"recall": np.mean(hits, axis=0), "median_rank": np.mean(medians, axis=0)}

    result["interval"] = bootstrap_intervals(statistics, patients, resamples=resamples, seed=seed)
    return result
