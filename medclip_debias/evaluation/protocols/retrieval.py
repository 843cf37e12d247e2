"""Box-sentence retrieval, both ways, and how any retrieval is measured.

A box's feature is the mean of the unit region vectors inside it (RoIAlign, then the mean over
the union's boxes), brought to unit length; its score with a sentence is their cosine. Each
sentence ranks all boxes and each box ranks all sentences, one candidate for each phrase.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.evaluation.bootstrap import Statistics, weighted_mean, weighted_median
from medclip_debias.evaluation.catalogue import CHANCE
from medclip_debias.evaluation.metrics import first_relevant_rank, median_rank, recall_at
from medclip_debias.evaluation.phrase_selection import Phrases, phrases_of
from medclip_debias.evaluation.protocol import (
    Draw,
    Measured,
    Protocol,
    Request,
    Skipped,
    columns_of,
    items_by_row,
)
from medclip_debias.evaluation.table import Row, rows
from medclip_debias.grounding.boxes import box_features, visible_boxes
from medclip_debias.grounding.saliency import without_maps
from medclip_debias.models.finite import finite
from medclip_debias.models.sentences import one_vector

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

Floats = NDArray[np.float64]
RECALLS = (10, 50, 100)
"""The paper's: Recall is the mean of these three, both ways."""
SHOWN_RECALLS = (1, 5, *RECALLS)
DIRECTIONS = ("sentence_to_box", "box_to_sentence")
Ranks = Mapping[str, Floats]


def pair_scores(
    box_features: NDArray[np.floating],
    sentence_features: NDArray[np.floating],
    sentence_of: NDArray[np.integer],
) -> Floats:
    """Cosines ``[boxes, phrases]``.

    Of box features ``[phrases, D]`` of any length, unit vectors of the distinct sentences
    ``[T, D]``, and the row of each phrase's sentence. Identical sentences get bit-identical
    columns, so that their ties are ties.
    """
    boxes = np.asarray(box_features, dtype=np.float64)
    length = np.linalg.norm(boxes, axis=1, keepdims=True)
    unit = boxes / np.where(length > 0, length, 1)
    scores: Floats = unit @ np.asarray(sentence_features, dtype=np.float64).T
    return scores[:, sentence_of]


def paired_ranks(
    scores: NDArray[np.floating], texts: Sequence[str], directions: tuple[str, str] = DIRECTIONS
) -> dict[str, Ranks]:
    """Ranks of the pairs on the diagonal of ``scores [images or boxes, texts]``.

    ``directions`` name "a text ranks the rows" and "a row ranks the texts".

    ``strict`` and ``lenient`` (equal texts count as one) hold each of ``directions``: "a text ranks
    the rows" and "a row ranks the texts".
    """
    codes = np.unique(np.asarray(texts, dtype=object).astype(str), return_inverse=True)[1]
    modes = {"strict": np.arange(len(texts)), "lenient": codes}
    ranks: dict[str, Ranks] = {}
    for mode, code in modes.items():
        same = code[:, None] == code[None, :]
        ranks[mode] = {
            directions[0]: first_relevant_rank(scores.T, same.T),
            directions[1]: first_relevant_rank(scores, same),
        }
    return ranks


def chance(n: int) -> dict[str, float]:
    """Recall and median rank of a random order of ``n`` candidates."""
    return {
        "recall": float(np.mean([min(k, n) / n for k in RECALLS])),
        "median_rank": (n + 1) / 2,
    }


def pair_rows(ranks: Mapping[str, Ranks], patients: Sequence[str], draw: Draw) -> list[Row]:
    """`rank_rows` of what `paired_ranks` gave; the whole is ``strict``, as the paper defines it.

    ``strict``: only the text that the query belongs to counts; items with the same text are ties
    when rows rank texts, and rivals when texts rank rows. ``lenient``: any item with the same text
    counts.
    """
    measured = []
    for mode, group in (("strict", None), ("lenient", "lenient")):
        of_way = dict.fromkeys(ranks[mode], patients)
        measured += rank_rows(ranks[mode], of_way, draw, mode, n=len(patients), group=group)
    return measured


def rank_rows(
    ranks: Ranks,
    patients: Mapping[str, Sequence[str]],
    draw: Draw,
    mode: str,
    *,
    n: int,
    group: str | None,
) -> list[Row]:
    """Recall and median rank over the directions, and R@K and median rank of each.

    Intervals redraw the patients of the queries; the candidates stay as they are.
    """
    # Queries of all directions side by side, so that one draw of patients serves them all.
    sizes = np.cumsum([len(found) for found in ranks.values()])[:-1]
    everybody = [name for way in ranks for name in patients[way]]

    def statistics(weights: Floats) -> dict[str, Floats]:
        return _headline(list(ranks.values()), np.split(weights, sizes, axis=1))

    measured = draw.estimates(statistics, everybody).rows(n=n, group=group)
    for way, found in ranks.items():
        part = {f"recall_at_{k}": recall_at(found, k) for k in SHOWN_RECALLS}
        part["median_rank"] = median_rank(found)
        measured += rows(part, n=len(found), group=f"{mode}, {way.replace('_', ' ')}")
    return measured


def _headline(ranks: Sequence[Floats], weights: Sequence[Floats]) -> dict[str, Floats]:
    """Recall and median rank over the directions, each under its own weights of the queries."""
    pairs = list(zip(ranks, weights, strict=True))
    hits = [weighted_mean(found <= k, w) for found, w in pairs for k in RECALLS]
    medians = [weighted_median(found, w) for found, w in pairs]
    return {"recall": np.mean(hits, axis=0), "median_rank": np.mean(medians, axis=0)}


def rank_items(
    ids: Sequence[str], patients: Sequence[str], ranks: Mapping[str, Ranks]
) -> pd.DataFrame:
    """Ranks of each pair as a table for paired statistics."""
    table = pd.DataFrame({"id": list(ids), "patient": list(patients)})
    for mode, found in ranks.items():
        for way, name in zip(found, ("text_to_image", "image_to_text"), strict=True):
            table[f"rank_{name}_{mode}"] = found[way]
    return table


def target_ranks(
    scores: NDArray[np.floating], query: NDArray[np.integer], target: NDArray[np.integer]
) -> NDArray[np.float64]:
    """Rank, from 1, of candidate ``target[p]`` for query ``query[p]``; ties get the mean rank.

    ``scores [queries, candidates]`` are high where a candidate is good.
    """
    ranks = np.empty(len(query))
    order = np.argsort(query, kind="stable")
    bounds = np.searchsorted(query[order], np.arange(len(scores) + 1))
    for row in range(len(scores)):
        pairs = order[bounds[row] : bounds[row + 1]]
        if not pairs.size:
            continue
        ascending = np.sort(scores[row])
        values = scores[row, target[pairs]]
        below = np.searchsorted(ascending, values, "left")
        reached = np.searchsorted(ascending, values, "right")
        ranks[pairs] = len(ascending) - reached + (reached - below + 1) / 2
    return ranks


def good_shares(scores: Floats, good: NDArray[np.bool_], k: int) -> Floats:
    """Share of good candidates among the ``k`` best of each query ``[queries]``.

    With equal scores at the k-th place, the share expected when they are put in random order.
    ``scores [queries, candidates]`` are -inf for what is no candidate.
    """
    places = scores.shape[1] - k
    bound = np.partition(scores, places, axis=1)[:, [places]]
    above, level = scores > bound, scores == bound
    room = k - above.sum(axis=1)
    share = (good & level).sum(axis=1) / level.sum(axis=1)
    return np.asarray(((good & above).sum(axis=1) + room * share) / k)


class RankedPairs(Protocol):
    """A retrieval whose items are the ranks of pairs, both ways."""

    @staticmethod
    def statistics(details: Mapping[str, Any], items: pd.DataFrame) -> Statistics:
        """Recall and median rank of the strict ranks."""
        del details
        ranks = columns_of(items, "rank_text_to_image_strict", "rank_image_to_text_strict")
        return lambda weights: _headline(ranks, [weights, weights])


class BoxRetrieval(RankedPairs):
    """The protocol on boxes: which sentence belongs to this box, which box to this sentence?"""

    name = file = "retrieval"

    def __init__(self, phrases: Phrases) -> None:
        self.phrases = [phrase for phrase in phrases.phrases if phrase.groundable]
        self.texts = list(dict.fromkeys(phrase.text for phrase in phrases.phrases))
        self.rows = frozenset(phrase.row for phrase in self.phrases)
        self.features: dict[int, NDArray[np.float32]] = {}
        self._left_out = len(phrases.phrases) - len(self.phrases)
        self._of_image = items_by_row(phrase.row for phrase in self.phrases)

    @classmethod
    def plan(cls, request: Request) -> Self:
        return cls(request.once(phrases_of))

    def begin(self, model: ImageTextModel, vectors: Tensor) -> None:
        from medclip_debias.models.interface import compares

        self._compares = compares(model, "regions")
        own = one_vector(vectors, model.outputs.sentence_rows, "regions")
        self._grid, self._vectors = without_maps(model).grid, finite(own, self.name)

    def see(self, rows: Sequence[int], features: ImageFeatures) -> None:
        seen = [
            (number, place, boxes)
            for place, row in enumerate(rows)
            for number in self._of_image[row]
            for boxes in (visible_boxes(self.phrases[number].boxes, self.phrases[number].geometry),)
            if len(boxes)
        ]
        if seen and self._compares:
            numbers, places, boxes = zip(*seen, strict=True)
            regions = features.regions[list(places)]
            found = finite(box_features(regions, self._grid, boxes), self.name)
            self.features |= dict(zip(numbers, found, strict=True))

    def measure(self, draw: Draw) -> Measured:
        if not self._compares:
            raise Skipped(
                "This model answers questions about an image; they do not lie with its regions, so "
                "boxes and sentences cannot be compared."
            )
        usable = sorted(self.features)
        if len(usable) < 2:
            raise Skipped("Retrieval needs at least two phrases with boxes in the model's view.")
        phrases = [self.phrases[number] for number in usable]
        scores = pair_scores(
            np.stack([self.features[number] for number in usable]),
            self._vectors,
            np.array([self.texts.index(phrase.text) for phrase in phrases]),
        )
        texts = [phrase.text for phrase in phrases]
        patients = [phrase.patient for phrase in phrases]
        ranks = paired_ranks(scores, texts)
        details = {
            "phrases": len(phrases),
            "distinct_sentences": len(set(texts)),
            "unseen_boxes": len(self.phrases) - len(usable),
            "not_groundable": self._left_out,
        }
        measured = pair_rows(ranks, patients, draw)
        measured += rows(chance(len(phrases)), group=CHANCE)
        items = rank_items([phrase.phrase_id for phrase in phrases], patients, ranks)
        return Measured(measured, details, items)
