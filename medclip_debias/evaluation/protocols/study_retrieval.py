"""Whole-study retrieval: which report belongs to this image, which image to this report?

One image a study (the first of its rows that are judged; or the mean of the scores of all of
them) and the study's distinct sentences. Everything is scored with the trained image-sentence
similarity: an image with a report by the mean (or the largest) of its scores with the report's
sentences.

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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.labels import CHEX5
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.bootstrap import weighted_mean
from medclip_debias.evaluation.catalogue import CHANCE
from medclip_debias.evaluation.label_table import study_labels
from medclip_debias.evaluation.metrics import first_relevant_rank
from medclip_debias.evaluation.options import EvaluationOptions
from medclip_debias.evaluation.presets import Preset, chosen_presets
from medclip_debias.evaluation.presets.retrieval import retrieval_metrics, whole_texts
from medclip_debias.evaluation.protocol import (
    Draw,
    Estimates,
    Measured,
    Request,
    Skipped,
    patients_of,
    rows_of_split,
    study_sentences,
)
from medclip_debias.evaluation.protocols.retrieval import (
    RankedPairs,
    chance,
    good_shares,
    pair_rows,
    paired_ranks,
    rank_items,
    rank_rows,
    target_ranks,
)
from medclip_debias.evaluation.retrieval_examples import FOLDER, write_examples
from medclip_debias.evaluation.table import Row, rows
from medclip_debias.models.finite import finite

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.data.label_maps import LabelMap
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

Floats = NDArray[np.floating]
Bools = NDArray[np.bool_]
PRECISIONS = (5, 10, 100)
REPORT_WAYS = ("report_to_image", "image_to_report")
SENTENCE_WAYS = ("sentence_to_image", "image_to_sentence")
BLOCK = 256


class StudyRetrieval(RankedPairs):
    """The protocol on the studies of one split; `studies` are in the order of the set's rows."""

    name = file = "study_retrieval"
    reads_regions = False

    def __init__(
        self,
        data: PreparedSet,
        split: str,
        options: EvaluationOptions,
        label_map: LabelMap | None = None,
    ) -> None:
        self._options = options
        sentences = study_sentences(data)
        rows_of: dict[str, list[int]] = {}
        without, other_views = set(), set()
        for row in rows_of_split(data, split):
            study = str(data.images["study_id"].iloc[row])
            if study not in sentences:
                without.add(study)
            elif options.views == "frontal" and not data.frontal[row]:
                other_views.add(study)
            else:
                rows_of.setdefault(study, []).append(row)
        if len(rows_of) < 2:
            raise Skipped(
                f"Whole-study retrieval needs at least two studies of '{split}' with an image and "
                f"a sentence; there are {len(rows_of)}."
            )
        by_digest = sorted(rows_of, key=lambda s: hashlib.sha256(s.encode()).hexdigest())
        chosen = set(by_digest[: options.most_studies])
        self.studies = [study for study in rows_of if study in chosen]
        self._left_out = {
            "studies_without_sentence": len(without),
            "studies_of_other_views": len(other_views - rows_of.keys()),
            "studies_over_limit": len(rows_of) - len(chosen),
        }
        self._row_order = [rows_of[study][0] for study in self.studies]
        most = None if options.several_views == "mean" else 1
        views = [rows_of[study][:most] for study in self.studies]
        self._place = {row: place for place, of_study in enumerate(views) for row in of_study}
        self._views = np.array([len(of_study) for of_study in views])
        self.rows = frozenset(self._place)
        self.texts = list(dict.fromkeys(t for study in self.studies for t in sentences[study]))
        self._sentences_read = len(self.texts)
        column = {text: number for number, text in enumerate(self.texts)}
        self._reports = [sorted(column[t] for t in sentences[study]) for study in self.studies]
        rules = [preset.retrieval for preset in chosen_presets(options.preset)]
        self._whole = {
            rule.text: whole_texts(rule, data.sentences, self.studies) for rule in rules if rule
        }
        whole = (text for of_study in self._whole.values() for text in of_study.values())
        self.texts += [text for text in dict.fromkeys(whole) if text not in column]
        self._patients = patients_of(data, self._row_order)
        self._precision_classes, self._positive = _positive_labels(
            data, self.studies, options, label_map
        )

    @classmethod
    def plan(cls, request: Request) -> Self:
        own = request.label_map if request.labels is None else None  # of the set's own columns
        return cls(request.data, request.split, request.options, own)

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
        ranks = paired_ranks(reports, same, REPORT_WAYS)
        says = self._says()
        details: dict[str, Any] = {
            "studies": len(self.studies),
            "images": len(self.rows),
            "patients": len(set(self._patients)),
            "distinct_reports": len(set(same)),
            "distinct_sentences": self._sentences_read,
            **self._left_out,
            "pairs": int(says.sum()),
        }
        measured = pair_rows(ranks, self._patients, draw)
        measured += rows(chance(len(self.studies)), group=CHANCE)
        measured += self._sentence_rows(says, draw)
        if self._positive is not None:
            details["precision_classes"] = self._precision_classes
            match_all = self._options.precision_match == "all"
            for way, scores in zip(REPORT_WAYS, (reports.T, reports), strict=True):
                part = class_precision(
                    scores, self._positive, self._patients, draw, match_all=match_all
                )
                details["without_label"] = part["without_label"]
                floor = part.pop("chance")
                # An image ranks the reports: what the catalogue means.
                group = None if way == REPORT_WAYS[1] else way.replace("_", " ")
                precisions = rows(part, n=part["queries"], group=group)
                measured += precisions
                if group is None:
                    measured += [Row(row.metric, floor, group=CHANCE) for row in precisions]
        return Measured(measured, details, rank_items(self.studies, self._patients, ranks))

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
        column = {text: number for number, text in enumerate(self.texts)}
        texts = [whole[self.studies[n]] for n in kept]
        scores = self._scores[np.ix_(kept, [column[text] for text in texts])]
        of_kept = None if classes is None else classes[kept]
        return retrieval_metrics(rule, scores, texts, of_kept) | without

    def write_pictures(self, out: Path, data: PreparedSet, count: int) -> None:
        """A few queries with their best answers."""
        del count
        texts = self.texts[: self._sentences_read]
        scores = self._scores[:, : self._sentences_read]
        write_examples(out / FOLDER, data, self._row_order, texts, self._says(), scores)

    def _report_scores(self) -> tuple[NDArray[np.float64], list[str]]:
        """Scores ``[images, reports]``, and a name of each report that equal ones share."""
        scores = report_scores(self._scores, self._reports, self._options.report_score)
        return scores, [" ".join(map(str, columns)) for columns in self._reports]

    def _says(self) -> Bools:
        """``[studies, sentences]``, whose report holds which sentence."""
        says = np.zeros((len(self.studies), self._sentences_read), dtype=bool)
        for number, columns in enumerate(self._reports):
            says[number, columns] = True
        return says

    def _sentence_rows(self, says: Bools, draw: Draw) -> list[Row]:
        scores = self._scores[:, : self._sentences_read]
        study, sentence = np.nonzero(says)
        patients = np.asarray(self._patients, dtype=object)
        strict = target_ranks(scores.T, sentence, study), target_ranks(scores, study, sentence)
        lenient = first_relevant_rank(scores.T, says.T), first_relevant_rank(scores, says)
        pairs = list(patients[study])
        # A sentence that several patients share is resampled with the first of them.
        queries = list(patients[says.argmax(axis=0)]), self._patients
        measured = []
        for mode, ranks, of_way in (
            ("strict", strict, (pairs, pairs)),
            ("lenient", lenient, queries),
        ):
            measured += rank_rows(
                dict(zip(SENTENCE_WAYS, ranks, strict=True)),
                dict(zip(SENTENCE_WAYS, of_way, strict=True)),
                draw,
                mode,
                n=len(study),
                group=f"sentences, {mode}",
            )
        return measured


# ------------------------------------------------------------------------------- measures


def report_scores(
    scores: Floats, reports: Sequence[Sequence[int]], how: str = "mean"
) -> NDArray[np.float64]:
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
    scores: Floats,
    positive: Bools,
    patients: Sequence[str],
    draw: Draw,
    *,
    match_all: bool = True,
) -> dict[str, Any]:
    """Precision@K of studies that share the query's positive labels.

    Both sides of ``scores [queries, candidates]`` are the studies of ``positive [studies,
    classes]``. With equal scores at the K-th place, the share expected when they are put in random
    order. A study counts when it has all (``match_all``) or any of the query's positive labels.

    Returns:
        ``precision_at_K`` (None where there are fewer than K candidates), ``interval``,
        ``chance`` (the share of all candidates that count), ``queries``, ``without_label``.
    """
    queries = np.flatnonzero(positive.any(axis=1))
    numbers = positive.astype(np.int64)
    wanted = numbers[queries].sum(axis=1, keepdims=True) if match_all else 1
    good = numbers[queries] @ numbers.T >= wanted
    values = scores[queries].astype(np.float64)
    own = np.arange(len(queries)), queries  # the query itself is no candidate
    good[own], values[own] = False, -np.inf
    names = [f"precision_at_{k}" for k in PRECISIONS]
    shares, estimates = {}, Estimates({}, {})
    if len(queries):
        usable = [k for k in PRECISIONS if k < len(scores)]
        shares = {f"precision_at_{k}": good_shares(values, good, k) for k in usable}
        estimates = draw.estimates(
            lambda weights: {name: weighted_mean(share, weights) for name, share in shares.items()},
            [patients[query] for query in queries.tolist()],
        )
    base = good.sum(axis=1) / max(len(scores) - 1, 1)
    return {
        # The plain mean, whose last digit the weighted one may not have.
        **{name: float(shares[name].mean()) if name in shares else None for name in names},
        "interval": {name: estimates.intervals.get(name) for name in names},
        "chance": float(base.mean()) if len(queries) else None,
        "queries": len(queries),
        "without_label": int(len(scores) - len(queries)),
    }


def _positive_labels(
    data: PreparedSet,
    studies: Sequence[str],
    options: EvaluationOptions,
    label_map: LabelMap | None,
) -> tuple[list[str], Bools | None]:
    """Which CheX5 labels each study has; no class and None where the set has none of them."""
    if label_map is not None and not set(CHEX5) & set(label_map.classes):
        return [], None
    try:
        found = study_labels(data, studies, CHEX5, label_map)[1]
    except Skipped:
        return [], None
    if label_map is None and all(np.isnan(values).all() for values in found.values()):
        return [], None
    judged = [options.labels.apply(values) == 1 for values in found.values()]
    return list(found), np.stack(judged, axis=1)
