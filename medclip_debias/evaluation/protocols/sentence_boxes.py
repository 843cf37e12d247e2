"""Boxes for sentences that may not be in the image: zero, one or many, each with a confidence.

Every image is asked about what it shows (its phrases with boxes), what its report denies, and what
other images show and this one does not (`medclip_debias.evaluation.sentence_choice`). Boxes are cut
from every map; a rule chosen on validation images withholds those of sentences that are not there
(`medclip_debias.grounding.suppression`). The task is that of generalised phrase grounding (Zhang et
al. 2025, "Generalised Medical Phrase Grounding"); no box of a validation image is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from medclip_debias.evaluation.bootstrap import Statistics, weighted_auc, weighted_mean
from medclip_debias.evaluation.maps import MapProtocol
from medclip_debias.evaluation.metrics import weighted_average_precision
from medclip_debias.evaluation.phrase_selection import VALIDATE, Phrases, phrases_of
from medclip_debias.evaluation.protocol import Draw, Measured, Request, geometry_of, patients_of
from medclip_debias.evaluation.sentence_choice import RULE, Choice, choose
from medclip_debias.evaluation.upsampled import Upsampled, box_threshold
from medclip_debias.grounding.boxes import overlaps
from medclip_debias.grounding.counterparts import Reader
from medclip_debias.grounding.settings import KINDS, EvidenceKind, SuppressionRule
from medclip_debias.grounding.suppression import Evidence, judge, read_rule
from medclip_debias.models.sentences import one_vector

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel
    from medclip_debias.models.region_grid import RegionGrid

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
MATCH_LEVELS = (0.3, 0.5)
"""IoUs from which on a found box matches a true one, one to one."""


class SentenceBoxes(MapProtocol):
    """The protocol."""

    name = file = "sentence_boxes"
    truth = ("kind", "there", "truths")
    counted = "asked_sentences"

    def __init__(self, request: Request) -> None:
        data, options, split = request.data, request.options, request.split
        self._data, self._options, self._reader = data, options, Reader()
        most, views = options.sentences_per_image, options.views
        self._phrases: Phrases = request.once(phrases_of)
        self._queries = choose(data, split, most, self._reader, phrases=self._phrases, views=views)
        self.count = len(self._queries.queries)
        rows = [query.row for query in self._queries.queries]
        texts = [query.text for query in self._queries.queries]
        self.ask(request, rows, texts, sharpen=options.sharpen, reader=self._reader)
        self._denials = [self._reader.negated(text) for text in self.sentences]
        self.texts = list(dict.fromkeys([*self.sentences, *self._denials, *self.texts]))
        self._rule: SuppressionRule | None = None
        self._choice: Choice | None = None
        if options.suppression_from == "model":
            self._rule = read_rule(request.model_folder or data.folder, request.model)
        elif options.suppression_from == "validate" and split != VALIDATE:
            self._choice = Choice(data, options.suppression, most, self._reader, views)
            self.rows |= self._choice.rows
            self.texts = list(dict.fromkeys([*self.texts, *self._choice.texts]))
        self._boxes: dict[int, list[list[float]]] = {}
        self._shares: dict[int, list[float]] = {}
        self._evidence_of: dict[int, dict[EvidenceKind, float]] = {}

    def begin(self, model: ImageTextModel, vectors: Tensor) -> None:
        super().begin(model, vectors)
        self._against = self.vectors_of(self._denials)
        kinds: Sequence[EvidenceKind] = KINDS if self._choice and self._choice.rows else ()
        if self._rule is not None and self._rule.evidence:
            kinds = (self._rule.evidence,)
        self._evidence = Evidence(model, kinds)
        if self._choice:
            self._choice.begin(model, self.vectors_of(self._choice.texts))

    def see(self, rows: Sequence[int], features: ImageFeatures) -> None:
        for place, (row, own) in enumerate(zip(rows, features, strict=True)):
            if self._choice and row in self._choice.rows:
                self._choice.see([row], features[[place]])
            numbers = self.on_image.get(row, ())
            if numbers:
                columns = [self.columns[number] for number in numbers]
                evidence = self._evidence.of(own, self._asked[columns], self._against[columns])
                for column, number in enumerate(numbers):
                    found = {kind: float(v[0, column]) for kind, v in evidence.items()}
                    self._evidence_of[number] = found
        super().see(rows, features)

    def take(self, number: int, scores: NDArray[np.float32], grid: RegionGrid) -> None:
        row, rule = self._queries.queries[number].row, self._options.boxes
        geometry = geometry_of(self._data, row, self.model.preprocessing.input_size)
        heatmap = Upsampled(scores, geometry, grid, [], smoothing=self._options.smoothing)
        low, high = heatmap.extremes
        found, peaks = heatmap.regions_at_least(box_threshold(heatmap, rule), rule.connectivity)
        shares = [min((p - low) / (high - low), 1.0) if high > low else 0.0 for p in peaks]
        order = sorted(range(len(found)), key=lambda place: -shares[place])
        self._boxes[number] = [found[place] for place in order]
        self._shares[number] = [shares[place] for place in order]

    def measure(self, draw: Draw) -> Measured:
        rule = self._choice.rule(self._data.content_hash) if self._choice else self._rule
        if rule is None:
            about = {"reason": "no rule was asked for, or none can be chosen on these images"}
            rule = SuppressionRule(chosen=about)
        table, hits, confidences = self._items(rule)
        of_table, truths = sentence_statistics(table), table["truths"].to_numpy(np.float64)

        def statistics(weights: Floats) -> dict[str, Floats]:
            return dict(of_table(weights)) | {
                f"average_precision_{level}": average_precision(right, confidences, truths, weights)
                for level, right in hits.items()
            }

        estimates = draw.estimates(statistics, table["patient"].tolist())
        fewer = {name: int(members.sum()) for name, members in _rests_on(table).items()}
        measured = estimates.rows(n=len(table), fewer=fewer)
        without = "without suppression"
        measured += estimates.rows("without_suppression/", n=len(table), fewer=fewer, group=without)
        details = {
            "sentences": len(table),
            "patients": table["patient"].nunique(),
            "asked": self._queries.counts,
            "choice": RULE,
            "suppressed_by_words": int(table["words"].sum()),
            "rule": rule.model_dump(mode="json", exclude={"level"}),
        }
        return Measured(measured, details, table)

    @classmethod
    def statistics(cls, details: Mapping[str, Any], items: pd.DataFrame) -> Statistics:
        del details
        return sentence_statistics(items)

    def _items(
        self, rule: SuppressionRule
    ) -> tuple[pd.DataFrame, dict[float, list[Bools]], list[list[float]]]:
        """A row for each sentence; which of its boxes are right by level, and how sure they are."""
        asked = self._queries.queries
        vectors = one_vector(self._asked, self.model.outputs.sentence_rows).cpu().numpy()
        levels = rule.levels(vectors) if rule.evidence == "offset" else np.zeros(len(vectors))
        names = self._data.images["image_id"]
        patients = patients_of(self._data, [query.row for query in asked])
        rows, confidences = [], []
        hits: dict[float, list[Bools]] = {level: [] for level in MATCH_LEVELS}
        for number, query in enumerate(asked):
            raw = self._evidence_of[number].get(rule.evidence, 0.0) if rule.evidence else 0.0
            # A mark of the readers decides what is true, never what is answered.
            denies = self._reader.denies(query.text)
            verdict = judge(rule, raw - float(levels[self.columns[number]]), denies)
            phrase = self._phrases.phrases[query.phrase] if query.phrase >= 0 else None
            truth = phrase.boxes if phrase is not None and query.there else []
            digest = hashlib.sha256(query.text.encode()).hexdigest()[:16]
            name = f"{names.iloc[query.row]}:{query.kind}:{digest}"
            boxes = self._boxes[number]
            row = {
                "id": phrase.phrase_id if phrase is not None else name,
                "patient": patients[number],
                "kind": query.kind,
                "there": query.there,
                "kept": float(verdict.there),
                "words": verdict.why == "words",
                "evidence": np.nan if verdict.evidence is None else verdict.evidence,
                "probability": verdict.probability,
                "truths": len(truth),
                "found": len(boxes),
            }
            for level in MATCH_LEVELS:
                row[f"hits_{level}"] = one_to_one(truth, boxes, level) if truth else 0
                hits[level].append(
                    hits_in_order(truth, boxes, level) if truth else np.zeros(len(boxes), bool)
                )
            rows.append(row)
            confidences.append([verdict.probability * share for share in self._shares[number]])
        return pd.DataFrame(rows), hits, confidences


def one_to_one(truth: ArrayLike, boxes: ArrayLike, level: float) -> int:
    """Most pairs of a true and a found box with an IoU of ``level`` or more, each box used once.

    A largest matching of a bipartite graph (Hopcroft and Karp 1973), not the greedy one: which box
    is looked at first does not change the number. Boxes are ``[K, 4]`` of x, y, width, height.

    >>> one_to_one([[0, 0, 2, 2]], [[0, 0, 2, 2], [0, 0, 2, 1.9]], 0.5)
    1
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    near = overlaps(truth, boxes) >= level
    if min(near.shape) < 2:
        return int(near.any())
    partner = maximum_bipartite_matching(csr_array(near.astype(np.int8)), perm_type="column")
    return int((partner >= 0).sum())


def hits_in_order(truth: ArrayLike, boxes: ArrayLike, level: float) -> Bools:
    """Which found boxes ``[F, 4]``, highest confidence first, are right: ``[F]``.

    Each takes the true box that it overlaps most of those that no earlier one has taken (as COCO
    counts), unless that IoU is less than ``level``; a second box on one truth is wrong.
    """
    shared = overlaps(truth, boxes)
    hits = np.zeros(shared.shape[1], dtype=bool)
    free = np.ones(len(shared), dtype=bool)
    for number in range(len(hits) if len(shared) else 0):
        left = np.where(free, shared[:, number], -1.0)
        best = int(left.argmax())
        if left[best] >= level:
            hits[number], free[best] = True, False
    return hits


def average_precision(
    hits: Sequence[Bools],
    confidences: Sequence[Sequence[float]],
    truths: Floats,
    weights: Floats,
) -> Floats:
    """Average precision of the boxes of all sentences, under ``weights [b, sentences]``: ``[b]``.

    Of each sentence which of its boxes are right (`hits_in_order`), how sure they are, and how many
    true boxes it has; one that is never found adds nothing. NaN without a true box.
    """
    sentence = np.repeat(np.arange(len(hits)), [len(boxes) for boxes in hits])
    total = weights @ truths
    if not sentence.size:
        return np.asarray(np.where(total > 0, 0.0, np.nan))
    right, sure = np.concatenate(hits), np.concatenate([np.asarray(c, float) for c in confidences])
    return weighted_average_precision(right, sure, weights[:, sentence], total)


def sentence_statistics(table: pd.DataFrame) -> Statistics:
    """Every metric but average precision from the item table, under weights of the sentences.

    Precision, recall and F1 count boxes over all sentences: a box for a sentence that is not there
    is a wrong one. 0 / 0 is 0 for precision and F1 (no box was given), undefined for recall. A
    share of sentences of which none was asked, and the AUC without evidence, are left out.
    """
    column = {str(name): table[name].to_numpy() for name in table.columns}
    there, rests_on = column["there"].astype(bool), _rests_on(table)
    kept = column["kept"].astype(np.float64)
    truths, found = (column[name].astype(np.float64) for name in ("truths", "found"))
    evidence = column["evidence"].astype(np.float64)
    judged = rests_on["presence_auc"]
    both = there[judged].any() and not there[judged].all()

    def boxes(weights: Floats, given: Floats, prefix: str) -> dict[str, Floats]:
        result: dict[str, Floats] = {}
        total, answered = weights @ truths, weights @ (found * given)
        for level in MATCH_LEVELS:
            hits = weights @ (column[f"hits_{level}"].astype(np.float64) * given)
            result |= {
                f"{prefix}box_precision_{level}": _ratio(hits, answered, 0.0),
                f"{prefix}box_recall_{level}": _ratio(hits, total, np.nan),
                f"{prefix}box_f1_{level}": _ratio(2 * hits, answered + total, 0.0),
            }
        return result

    def statistics(weights: Floats) -> Mapping[str, Floats]:
        result = boxes(weights, kept, "")
        plain = boxes(weights, np.ones_like(kept), "without_suppression/")
        for level in MATCH_LEVELS:
            before = plain[f"without_suppression/box_recall_{level}"]
            result[f"recall_loss_{level}"] = before - result[f"box_recall_{level}"]
        dropped = 1 - kept
        right, wrong = weights @ (dropped * ~there), weights @ (dropped * there)
        total = weights @ (~there).astype(np.float64)
        result["suppression_f1"] = _ratio(2 * right, right + wrong + total, 0.0)
        for name in ("kept", "specificity", "specificity_denial", "specificity_elsewhere"):
            own, share = rests_on[name], kept if name == "kept" else 1 - kept
            if own.any():
                result[name] = weighted_mean(share[own], weights[:, own])
        if both and not np.isnan(evidence[judged]).any():
            result["presence_auc"] = weighted_auc(
                there[judged], evidence[judged], weights[:, judged]
            )
        return result | plain

    return statistics


def _rests_on(table: pd.DataFrame) -> dict[str, NDArray[np.bool_]]:
    """The sentences that a metric rests on, where it does not on all."""
    there, kind = table["there"].to_numpy(dtype=bool), table["kind"].to_numpy()
    recalls = ("box_recall", "recall_loss", "without_suppression/box_recall")
    names = (f"{recall}_{level}" for recall in recalls for level in MATCH_LEVELS)
    return dict.fromkeys(names, table["truths"].to_numpy() > 0) | {
        "kept": there,
        "specificity": ~there,
        "specificity_denial": kind == "denial",
        "specificity_elsewhere": kind == "elsewhere",
        "presence_auc": there | (kind == "elsewhere"),
    }


def _ratio(above: Floats, below: Floats, otherwise: float) -> Floats:
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(below > 0, above / below, otherwise))
