"""Report triplets: is an image nearer to its report than to the same with one finding denied?

The protocol of CXR-Align (Ko et al. 2025, "Bringing CLIP to the Clinic"): each image is scored
with three reports, the original, one in which a finding is negated, and one in which it is
omitted; the original should score highest. A report's score is, as in whole-study retrieval, the
mean (or the largest) of the image's scores with its distinct sentences; with the option
``triplet_reports: whole``, as published, the score with the whole text as one sentence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.evaluation.bootstrap import Statistics, bootstrap_intervals, weighted_mean
from medclip_debias.evaluation.protocol import (
    Draw,
    Measured,
    NotAsked,
    Protocol,
    Request,
    patients_of,
)
from medclip_debias.evaluation.protocols.study_retrieval import report_scores
from medclip_debias.evaluation.table import rows
from medclip_debias.evaluation.triplets import KINDS, Triplet, read_triplets
from medclip_debias.models.finite import finite

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.evaluation.options import EvaluationOptions
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

Floats = NDArray[np.float64]
SHARES = ("original_best", "original_above_negated", "original_above_omitted")


class ReportTriplets(Protocol):
    """The protocol on the triplets of a file.

    Args:
        data: the prepared set.
        triplets: at least one.
        source: where they are from, for the results.
        options: how a report is scored.
    """

    name: ClassVar[str] = "triplets"
    items_name: ClassVar[str] = "triplets"
    reads_regions: ClassVar[bool] = False

    def __init__(
        self,
        data: PreparedSet,
        triplets: Sequence[Triplet],
        source: Mapping[str, str | int],
        options: EvaluationOptions,
    ) -> None:
        self.triplets, self._source, self._how = list(triplets), dict(source), options.report_score
        whole = options.triplet_reports == "whole"
        parts = [
            [(text,) for text in triplet.texts] if whole else triplet.sentences
            for triplet in self.triplets
        ]
        self.texts = list(dict.fromkeys(t for three in parts for each in three for t in each))
        column = {text: number for number, text in enumerate(self.texts)}
        # In one order, so that reports with the same sentences score the same to the last bit.
        self._columns = [[sorted(column[t] for t in each) for each in three] for three in parts]
        rows = [triplet.row for triplet in self.triplets]
        self.rows = frozenset(rows)
        self._place = {row: place for place, row in enumerate(rows)}
        self._patients = patients_of(data, rows)
        names = data.images["image_id"].iloc[rows]
        self._ids = [f"{n}:{t.digest}" for n, t in zip(names, self.triplets, strict=True)]

    @classmethod
    def plan(cls, request: Request) -> Self:
        """See `Protocol.plan`."""
        if request.triplets is None:
            raise NotAsked("No triplets were given.")
        views = request.options.views
        found, source = read_triplets(request.triplets, request.data, request.split, views)
        return cls(request.data, found, source, request.options)

    def begin(self, model: ImageTextModel, vectors: Tensor) -> None:
        """See `Protocol.begin`."""
        self._model, self._vectors = model, vectors
        self._scores = np.full((len(self.triplets), len(KINDS)), np.nan)

    def see(self, rows: Sequence[int], features: ImageFeatures) -> None:
        """See `Protocol.see`."""
        found = finite(self._model.score(features, self._vectors), self.name)
        for number, row in enumerate(rows):
            place = self._place[row]
            own = report_scores(found[number : number + 1], self._columns[place], self._how)
            self._scores[place] = own[0]

    def measure(self, draw: Draw) -> Measured:
        """See `Protocol.measure`."""
        hits = triplet_hits(self._scores)
        statistics = share_statistics(hits)
        point = statistics(np.ones((1, len(self.triplets))))
        part = {
            **{name: float(point[name][0]) for name in SHARES},
            "interval": bootstrap_intervals(statistics, self._patients, **draw.keywords),
        }
        details = {
            "images": len(self.triplets),
            "patients": len(set(self._patients)),
            "distinct_texts": len(self.texts),
            "source": self._source,
        }
        scores = {f"score_{kind}": self._scores[:, place] for place, kind in enumerate(KINDS)}
        items = pd.DataFrame({"id": self._ids, "patient": self._patients} | hits | scores)
        return Measured(rows(part, n=len(self.triplets)), details, items)


def triplet_hits(scores: Floats) -> dict[str, Floats]:
    """For each triplet what counts for each of `SHARES`: 1, 0, or a tie's part ``[triplets]``.

    Reports that tie for the highest score share it: 1/2 or 1/3 for the original.

    Args:
        scores: of the three reports ``[triplets, 3]``, in the order of `KINDS`.
    """
    best = scores == scores.max(axis=1, keepdims=True)
    original = scores[:, :1]
    above = (original > scores) + 0.5 * (original == scores)
    return {
        "original_best": best[:, 0] / best.sum(axis=1),
        "original_above_negated": above[:, 1],
        "original_above_omitted": above[:, 2],
    }


def share_statistics(hits: Mapping[str, Floats]) -> Statistics:
    """Means of what `triplet_hits` gave, under any weights of the triplets."""
    return lambda weights: {name: weighted_mean(hits[name], weights) for name in SHARES}
