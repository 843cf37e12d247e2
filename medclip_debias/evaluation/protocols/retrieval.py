"""Retrieval: which sentence belongs to this box, which report or sentence to this image, both ways.

Boxes and sentences (`BoxRetrieval`): a box's feature is the mean of the unit region vectors inside
it (RoIAlign, then the mean over the union's boxes), brought to unit length; its score with a
sentence is their cosine. Each sentence ranks all boxes and each box ranks all sentences, one
candidate for each phrase.

Whole studies (`StudyRetrieval`): one image a study (the first of its rows that are judged; or the
mean of the scores of all of them) and the study's distinct sentences. Everything is scored with the
trained image-sentence similarity: an image with a report by the mean (or the largest) of its
scores with the report's sentences.

- image <-> report: pairs are the studies. ``strict``: only the own study counts; ``lenient``: any
  study with the same sentences.
- image <-> sentence: each distinct sentence is one candidate. ``strict``: the pairs are all
  (study, sentence) that belong together, and each must find the other among all images or all
  sentences. ``lenient``: one query an image, at its best-ranked own sentence, and one a sentence,
  at the best-ranked image whose report says it.
- precision@K: of the K studies that rank first for a query, the share that has its positive labels;
  the query's own study is no candidate, and a query without a positive label is none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.labels import CHEX5
from medclip_debias.evaluation.bootstrap import Statistics, weighted_mean, weighted_median
from medclip_debias.evaluation.catalogue import CHANCE
from medclip_debias.evaluation.label_table import study_labels
from medclip_debias.evaluation.metrics import (
    first_relevant_rank,
    good_shares,
    target_ranks,
)
from medclip_debias.evaluation.phrase_selection import phrases_of
from medclip_debias.evaluation.pictures import write_examples
from medclip_debias.evaluation.presets import Preset, chosen_presets
from medclip_debias.evaluation.presets.retrieval import retrieval_metrics, whole_texts
from medclip_debias.evaluation.protocol import (
    Draw,
    Measured,
    Protocol,
    Request,
    Skipped,
    columns_of,
    items_by_row,
    patients_of,
    rows_of_split,
    study_sentences,
)
from medclip_debias.evaluation.table import EXAMPLES, Row, rows
from medclip_debias.grounding.boxes import box_features, visible_boxes
from medclip_debias.grounding.saliency import without_maps
from medclip_debias.models.finite import finite
from medclip_debias.models.sentences import one_vector

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

Floats = NDArray[np.floating]
Doubles = NDArray[np.float64]
Bools = NDArray[np.bool_]
RECALLS = (10, 50, 100)
"""The paper's: Recall is the mean of these three, both ways."""
SHOWN_RECALLS = (1, 5, *RECALLS)
PRECISIONS = (5, 10, 100)
BLOCK = 256


# ------------------------------------------------------------------------------- measures


class Way(NamedTuple):
    """One direction: its name, the rank that each query gives its pair, the queries' patients."""

    name: str
    ranks: Doubles
    patients: Sequence[str]


def chance(n: int) -> dict[str, float]:
    """Recall and median rank of a random order of ``n`` candidates."""
    return {
        "recall": float(np.mean([min(k, n) / n for k in RECALLS])),
        "median_rank": (n + 1) / 2,
    }


def paired_ways(
    scores: Floats, texts: Sequence[str], patients: Sequence[str], names: tuple[str, str]
) -> dict[str, list[Way]]:
    """Ranks of the pairs on the diagonal of ``scores [images or boxes, texts]``.

    ``names`` are of "a text ranks the rows" and "a row ranks the texts". ``strict``: only the text
    that the query belongs to counts, as the paper defines it; items with the same text are ties
    when rows rank texts, and rivals when texts rank rows. ``lenient``: any item with the same text
    counts.
    """
    codes = np.unique(np.asarray(texts, dtype=object).astype(str), return_inverse=True)[1]
    ways = {}
    for mode, code in (("strict", np.arange(len(texts))), ("lenient", codes)):
        same = code[:, None] == code[None, :]
        ranks = first_relevant_rank(scores.T, same.T), first_relevant_rank(scores, same)
        ways[mode] = [Way(name, own, patients) for name, own in zip(names, ranks, strict=True)]
    return ways


def rank_rows(ways: Sequence[Way], draw: Draw, mode: str, *, group: str | None) -> list[Row]:
    """Recall and median rank over the directions, and R@K and median rank of each.

    Intervals redraw the patients of the queries; the candidates stay as they are. Over the
    directions ``n`` are the pairs, or nothing where these have different numbers of queries.
    """
    queries = {len(way.ranks) for way in ways}
    n = queries.pop() if len(queries) == 1 else None
    # Queries of all directions side by side, so that one draw of patients serves them all.
    sizes = np.cumsum([len(way.ranks) for way in ways])[:-1]
    everybody = [name for way in ways for name in way.patients]

    def statistics(weights: Doubles) -> dict[str, Doubles]:
        return _both_ways([way.ranks for way in ways], np.split(weights, sizes, axis=1))

    measured = draw.estimates(statistics, everybody).rows(n=n, group=group)
    for name, ranks, _ in ways:
        part = {f"recall_at_{k}": float((ranks <= k).mean()) for k in SHOWN_RECALLS}
        part["median_rank"] = float(np.median(ranks))
        measured += rows(part, n=len(ranks), group=f"{mode}, {name}")
    return measured


def _both_ways(ranks: Sequence[Doubles], weights: Sequence[Doubles]) -> dict[str, Doubles]:
    """Recall and median rank over the directions, each under its own weights of the queries."""
    pairs = list(zip(ranks, weights, strict=True))
    hits = [weighted_mean(own <= k, w) for own, w in pairs for k in RECALLS]
    medians = [weighted_median(own, w) for own, w in pairs]
    return {"recall": np.mean(hits, axis=0), "median_rank": np.mean(medians, axis=0)}


def pair_scores(boxes: Floats, sentences: Floats, sentence_of: NDArray[np.integer]) -> Doubles:
    """Cosines ``[boxes, phrases]``.

    Of box features ``[phrases, D]`` of any length, unit vectors of the distinct sentences
    ``[T, D]``, and the row of each phrase's sentence. Identical sentences get bit-identical
    columns, so that their ties are ties.
    """
    boxes = np.asarray(boxes, dtype=np.float64)
    length = np.linalg.norm(boxes, axis=1, keepdims=True)
    unit = boxes / np.where(length > 0, length, 1)
    scores: Doubles = unit @ np.asarray(sentences, dtype=np.float64).T
    return scores[:, sentence_of]


def report_scores(scores: Floats, reports: Sequence[Sequence[int]], how: str = "mean") -> Doubles:
    """Scores ``[images, reports]``: ``mean`` or ``max`` of those with each report's sentences.

    Reports with the same columns of ``scores [images, sentences]`` get bit-identical columns. Sums
    are in double precision.
    """
    order = np.concatenate([np.asarray(columns, dtype=np.intp) for columns in reports])
    lengths = np.array([len(columns) for columns in reports])
    starts = np.cumsum(lengths) - lengths
    reduce = np.maximum if how == "max" else np.add
    result = np.empty((len(scores), len(reports)))
    for start in range(0, len(scores), BLOCK):
        part = scores[start : start + BLOCK].astype(np.float64)[:, order]
        result[start : start + BLOCK] = reduce.reduceat(part, starts, axis=1)
    return result / lengths if how == "mean" else result


def class_precision(
    scores: Floats, positive: Bools, *, match_all: bool = True
) -> tuple[NDArray[np.intp], dict[str, Doubles], Doubles]:
    """Precision@K of studies that share the query's positive labels.

    Both sides of ``scores [queries, candidates]`` are the studies of ``positive [studies,
    classes]``. With equal scores at the K-th place, the share expected when they are put in random
    order. A study counts when it has all (``match_all``) or any of the query's positive labels.

    Returns:
        Which studies are queries, ``precision_at_K`` of each where there are more than K studies,
        and the share of all candidates that count.
    """
    queries = np.flatnonzero(positive.any(axis=1))
    numbers = positive.astype(np.int64)
    wanted = numbers[queries].sum(axis=1, keepdims=True) if match_all else 1
    good = numbers[queries] @ numbers.T >= wanted
    values = scores[queries].astype(np.float64)
    own = np.arange(len(queries)), queries  # the query itself is no candidate
    good[own], values[own] = False, -np.inf
    usable = [k for k in PRECISIONS if k < len(scores) and len(queries)]
    shares = {f"precision_at_{k}": good_shares(values, good, k) for k in usable}
    return queries, shares, good.sum(axis=1) / max(len(scores) - 1, 1)


class RankedPairs(Protocol):
    """A retrieval whose items are the ranks of pairs, both ways."""

    def rank_items(self, ids: Sequence[str], ways: Mapping[str, Sequence[Way]]) -> pd.DataFrame:
        """Ranks of each pair as a table for paired statistics."""
        columns: dict[str, Any] = {"id": list(ids), "patient": list(ways["strict"][0].patients)}
        for mode, both in ways.items():
            for name, way in zip(("text_to_image", "image_to_text"), both, strict=True):
                columns[f"rank_{name}_{mode}"] = way.ranks
        return pd.DataFrame(columns)

    def pair_rows(self, ways: Mapping[str, Sequence[Way]], draw: Draw) -> list[Row]:
        """`rank_rows` of what `paired_ways` gave, the whole ``strict``; and those of chance."""
        measured = rank_rows(ways["strict"], draw, "strict", group=None)
        measured += rank_rows(ways["lenient"], draw, "lenient", group="lenient")
        return measured + rows(chance(len(ways["strict"][0].ranks)), group=CHANCE)

    @classmethod
    def statistics(cls, details: Mapping[str, Any], items: pd.DataFrame) -> Statistics:
        """Recall and median rank of the strict ranks."""
        del details
        ranks = columns_of(items, "rank_text_to_image_strict", "rank_image_to_text_strict")
        return lambda weights: _both_ways(ranks, [weights, weights])


# ---------------------------------------------------------------------------------- boxes


class BoxRetrieval(RankedPairs):
    """The protocol on boxes: which sentence belongs to this box, which box to this sentence?"""

    name = file = "retrieval"

    def __init__(self, request: Request) -> None:
        phrases = request.once(phrases_of).phrases
        self._phrases = [phrase for phrase in phrases if phrase.groundable]
        self.texts = list(dict.fromkeys(phrase.text for phrase in phrases))
        self.rows = frozenset(phrase.row for phrase in self._phrases)
        self._features: dict[int, NDArray[np.float32]] = {}
        self._left_out = len(phrases) - len(self._phrases)
        self._of_image = items_by_row(phrase.row for phrase in self._phrases)

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
            for phrase in (self._phrases[number],)
            if len(boxes := visible_boxes(phrase.boxes, phrase.geometry))
        ]
        if seen and self._compares:
            regions = features.regions[[place for _, place, _ in seen]]
            pooled = box_features(regions, self._grid, [boxes for *_, boxes in seen])
            numbers = [number for number, *_ in seen]
            self._features |= dict(zip(numbers, finite(pooled, self.name), strict=True))

    def measure(self, draw: Draw) -> Measured:
        if not self._compares:
            raise Skipped(
                "This model answers questions about an image; they are not comparable with its"
                " regions, so boxes and sentences cannot be compared."
            )
        usable = sorted(self._features)
        if len(usable) < 2:
            raise Skipped("Retrieval needs at least two phrases with boxes in the model's view.")
        phrases = [self._phrases[number] for number in usable]
        texts = [phrase.text for phrase in phrases]
        scores = pair_scores(
            np.stack([self._features[number] for number in usable]),
            self._vectors,
            np.array([self.texts.index(text) for text in texts]),
        )
        names = ("sentence to box", "box to sentence")
        ways = paired_ways(scores, texts, [phrase.patient for phrase in phrases], names)
        details = {
            "phrases": len(phrases),
            "distinct_sentences": len(set(texts)),
            "unseen_boxes": len(self._phrases) - len(usable),
            "not_groundable": self._left_out,
        }
        items = self.rank_items([phrase.phrase_id for phrase in phrases], ways)
        return Measured(self.pair_rows(ways, draw), details, items)


# -------------------------------------------------------------------------- whole studies


class StudyRetrieval(RankedPairs):
    """The protocol on the studies of one split; `studies` are in the order of the set's rows."""

    name = file = "study_retrieval"
    reads_regions = False

    def __init__(self, request: Request) -> None:
        data, options = request.data, request.options
        sentences = study_sentences(data)
        rows_of: dict[str, list[int]] = {}
        without, other_views = set(), set()
        for row in rows_of_split(data, request.split):
            study = str(data.images["study_id"].iloc[row])
            if study not in sentences:
                without.add(study)
            elif options.views == "frontal" and not data.frontal[row]:
                other_views.add(study)
            else:
                rows_of.setdefault(study, []).append(row)
        if len(rows_of) < 2:
            raise Skipped(
                f"Whole-study retrieval needs at least two studies of '{request.split}' with an "
                f"image and a sentence; there are {len(rows_of)}."
            )
        by_digest = sorted(rows_of, key=lambda s: hashlib.sha256(s.encode()).hexdigest())
        chosen = set(by_digest[: options.most_studies])
        self.studies = [study for study in rows_of if study in chosen]
        self._left_out = {
            "studies_without_sentence": len(without),
            "studies_of_other_views": len(other_views - rows_of.keys()),
            "studies_over_limit": len(rows_of) - len(chosen),
        }
        self._options, self._first = options, [rows_of[study][0] for study in self.studies]
        most = None if options.several_views == "mean" else 1
        views = [rows_of[study][:most] for study in self.studies]
        self._place = {row: place for place, of_study in enumerate(views) for row in of_study}
        self._views = np.array([len(of_study) for of_study in views])
        self.rows = frozenset(self._place)
        self.texts = list(dict.fromkeys(t for study in self.studies for t in sentences[study]))
        column = {text: number for number, text in enumerate(self.texts)}
        self._reports = [sorted(column[t] for t in sentences[study]) for study in self.studies]
        self._says = np.zeros((len(self.studies), len(self.texts)), dtype=bool)
        for number, columns in enumerate(self._reports):
            self._says[number, columns] = True
        rules = [preset.retrieval for preset in chosen_presets(options.preset)]
        self._whole = {
            rule.text: whole_texts(rule, data.sentences, self.studies) for rule in rules if rule
        }
        whole = (text for of_study in self._whole.values() for text in of_study.values())
        self.texts += [text for text in dict.fromkeys(whole) if text not in column]
        self._patients = patients_of(data, self._first)
        self._classes, self._positive = _positive_labels(request, self.studies)

    def begin(self, model: ImageTextModel, vectors: Tensor) -> None:
        self._model, self._vectors = model, vectors
        self._scores = np.zeros((len(self.studies), len(self.texts)), dtype=np.float32)

    def see(self, rows: Sequence[int], features: ImageFeatures) -> None:
        scores = finite(self._model.score(features, self._vectors), self.name)
        places = [self._place[row] for row in rows]
        # A study of one image has that image's scores, to the bit.
        np.add.at(self._scores, places, scores / self._views[places, None].astype(scores.dtype))

    def measure(self, draw: Draw) -> Measured:
        reports, same = self._report_scores()
        names = ("report to image", "image to report")
        ways = paired_ways(reports, same, self._patients, names)
        details: dict[str, Any] = {
            "studies": len(self.studies),
            "images": len(self.rows),
            "patients": len(set(self._patients)),
            "distinct_reports": len(set(same)),
            "distinct_sentences": self._says.shape[1],
            **self._left_out,
            "pairs": int(self._says.sum()),
        }
        measured = self.pair_rows(ways, draw) + self._sentence_rows(draw)
        if self._positive is not None:
            match_all = self._options.precision_match == "all"
            # An image ranks the reports: what the catalogue means.
            for group, scores in ((names[0], reports.T), (None, reports)):
                part = class_precision(scores, self._positive, match_all=match_all)
                measured += self._precision_rows(*part, draw, group)
            without = int((~self._positive.any(axis=1)).sum())
            details |= {"precision_classes": self._classes, "without_label": without}
        return Measured(measured, details, self.rank_items(self.studies, ways))

    def under(self, preset: Preset) -> dict[str, Any] | None:
        """See `Protocol.under`; whole texts are scored if the run was asked for the preset."""
        rule = preset.retrieval
        if rule is None:
            return None
        classes = None
        if self._positive is not None:
            alone = self._positive.sum(axis=1) == 1
            classes = np.where(alone, self._positive.argmax(axis=1), -1)
        if rule.text == "sentences":
            return retrieval_metrics(rule, *self._report_scores(), classes)
        whole = self._whole.get(rule.text, {})
        kept = [n for n, study in enumerate(self.studies) if study in whole]
        without = {"studies_without_text": len(self.studies) - len(kept)}
        if not kept:
            return {"reason": "no study has such a section"} | without
        texts = [whole[self.studies[n]] for n in kept]
        column = {text: number for number, text in enumerate(self.texts)}
        scores = self._scores[np.ix_(kept, [column[text] for text in texts])]
        of_kept = None if classes is None else classes[kept]
        return retrieval_metrics(rule, scores, texts, of_kept) | without

    def write_pictures(self, out: Path, data: PreparedSet, count: int) -> None:
        """A few queries with their best answers."""
        del count
        most = self._says.shape[1]
        shown = self.texts[:most], self._says, self._scores[:, :most]
        write_examples(out / EXAMPLES, data, self._first, *shown)

    def _report_scores(self) -> tuple[Doubles, list[str]]:
        """Scores ``[images, reports]``, and a name of each report that equal ones share."""
        scores = report_scores(self._scores, self._reports, self._options.report_score)
        return scores, [" ".join(map(str, columns)) for columns in self._reports]

    def _sentence_rows(self, draw: Draw) -> list[Row]:
        says, patients = self._says, np.asarray(self._patients, dtype=object)
        scores = self._scores[:, : says.shape[1]]
        study, sentence = np.nonzero(says)
        # A sentence that several patients share is resampled with the first of them.
        of_sentence, of_pair = patients[says.argmax(axis=0)], list(patients[study])
        to_image, to_sentence = "sentence to image", "image to sentence"
        ways = {
            "strict": [
                Way(to_image, target_ranks(scores.T, sentence, study), of_pair),
                Way(to_sentence, target_ranks(scores, study, sentence), of_pair),
            ],
            "lenient": [
                Way(to_image, first_relevant_rank(scores.T, says.T), list(of_sentence)),
                Way(to_sentence, first_relevant_rank(scores, says), self._patients),
            ],
        }
        return [
            row
            for mode, both in ways.items()
            for row in rank_rows(both, draw, mode, group=f"sentences, {mode}")
        ]

    def _precision_rows(
        self,
        queries: NDArray[np.intp],
        shares: Mapping[str, Doubles],
        base: Doubles,
        draw: Draw,
        group: str | None,
    ) -> list[Row]:
        if not shares:
            return []
        patients = [self._patients[query] for query in queries]
        measured = draw.estimates(
            lambda weights: {name: weighted_mean(share, weights) for name, share in shares.items()},
            patients,
        ).rows(n=len(queries), group=group)
        floors = [Row(row.metric, float(base.mean()), group=CHANCE) for row in measured]
        return measured + (floors if group is None else [])


def _positive_labels(request: Request, studies: Sequence[str]) -> tuple[list[str], Bools | None]:
    """Which CheX5 labels each study has; no class and None where the set has none of them."""
    # A map of the columns of another table says nothing of the set's own.
    label_map = request.label_map if request.labels is None else None
    if label_map is not None and not set(CHEX5) & set(label_map.classes):
        return [], None
    try:
        labels = study_labels(request.data, studies, CHEX5, label_map)[1]
    except Skipped:
        return [], None
    if label_map is None and all(np.isnan(values).all() for values in labels.values()):
        return [], None
    judged = [request.options.labels.apply(values) == 1 for values in labels.values()]
    return list(labels), np.stack(judged, axis=1)
