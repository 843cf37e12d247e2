"""Found boxes against true ones, one to one: hits, and average precision over their confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from medclip_debias.grounding.boxes import overlaps

Floats = NDArray[np.float64]


def one_to_one(truth: ArrayLike, found: ArrayLike, level: float) -> int:
    """Most pairs of a true and a found box with an IoU of ``level`` or more, each box used once.

    A largest matching of a bipartite graph (Hopcroft and Karp 1973), not the greedy one: which box
    is looked at first does not change the number. Boxes are ``[K, 4]`` of x, y, width, height.

    >>> one_to_one([[0, 0, 2, 2]], [[0, 0, 2, 2], [0, 0, 2, 1.9]], 0.5)
    1
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    near = overlaps(truth, found) >= level
    if min(near.shape) < 2:
        return int(near.any())
    partner = maximum_bipartite_matching(csr_array(near.astype(np.int8)), perm_type="column")
    return int((partner >= 0).sum())


def hits_in_order(truth: ArrayLike, found: ArrayLike, level: float) -> NDArray[np.bool_]:
    """Which found boxes ``[F, 4]``, highest confidence first, are right: ``[F]``.

    Each takes the true box that it overlaps most of those that no earlier one has taken (as COCO
    counts), unless that IoU is less than ``level``; a second box on one truth is wrong.
    """
    shared = overlaps(truth, found)
    hits = np.zeros(shared.shape[1], dtype=bool)
    free = np.ones(len(shared), dtype=bool)
    for number in range(len(hits) if len(shared) else 0):
        left = np.where(free, shared[:, number], -1.0)
        best = int(left.argmax())
        if left[best] >= level:
            hits[number], free[best] = True, False
    return hits


@dataclass(frozen=True)
class Detections:
    """The boxes found for many sentences, for average precision under weights of the sentences.

    Of each box its sentence's number, its confidence, and whether it is right (`hits_in_order`);
    ``truths``: how many true boxes each sentence has.
    """

    item: NDArray[np.intp]
    confidence: Floats
    hit: NDArray[np.bool_]
    truths: Floats

    @classmethod
    def of(
        cls,
        hits: Sequence[NDArray[np.bool_]],
        confidences: Sequence[Sequence[float]],
        truths: Sequence[int],
    ) -> Detections:
        """From one entry a sentence each."""
        counts = [len(boxes) for boxes in hits]
        return cls(
            np.repeat(np.arange(len(counts)), counts),
            np.array([value for boxes in confidences for value in boxes], dtype=np.float64),
            np.concatenate([np.zeros(0, dtype=bool), *hits]),
            np.asarray(truths, dtype=np.float64),
        )

    def average_precision(self, weights: Floats) -> Floats:
        """Step-wise area under precision over recall, for each row of ``weights`` ``[b, items]``.

        The sum over the ranked boxes of precision times what each adds to recall, boxes of equal
        confidence taken together; what is never found adds nothing. NaN without a true box.
        """
        order = np.argsort(-self.confidence, kind="stable")
        w = weights[:, self.item[order]]
        ranked = self.confidence[order]
        total = weights @ self.truths
        with np.errstate(invalid="ignore", divide="ignore"):
            if not len(order):
                return np.asarray(np.where(total > 0, 0.0, np.nan))
            last = np.flatnonzero(np.r_[ranked[1:] != ranked[:-1], True])
            right = np.cumsum(w * self.hit[order], axis=1)[:, last]
            taken = np.cumsum(w, axis=1)[:, last]
            gained = np.diff(right, axis=1, prepend=0.0)
            precision = np.where(taken > 0, right / taken, 0.0)
            return np.asarray((precision * gained).sum(axis=1) / total)
