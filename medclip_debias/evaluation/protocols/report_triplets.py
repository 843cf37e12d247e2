"""Report triplets: is an image nearer to its report than to the same with one finding denied?

The protocol of CXR-Align (Ko et al. 2025, "Bringing CLIP to the Clinic"): each image is scored
with three reports, the original, one in which a finding is negated, and one in which it is
omitted; the original should score highest. A report's score is, as in whole-study retrieval, the
mean (or the largest) of the image's scores with its distinct sentences; with the option
``triplet_reports: whole``, as published, the score with the whole text as one sentence.

Two forms of file are read. CXR-Align 1.0.0 (PhysioNet) is a JSON object of groups (``mimic``); a
group maps an image id (``dicom_id``) to ``report``, ``negation``, ``omitted`` and what was changed
(``chosen``, ``location``), as programs that read it publicly do; the file itself is behind a
licence. A table of one's own (CSV or Parquet) has ``image_id``, ``study_id`` or another key of a
label table, and ``original``, ``negated``, ``omitted``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.reports import report_sentences
from medclip_debias.data.views import Views
from medclip_debias.errors import UserError
from medclip_debias.evaluation.label_table import OTHER_VIEWS, KeyedTable
from medclip_debias.evaluation.metrics import highest_shares
from medclip_debias.evaluation.protocol import (
    HELD_OUT,
    Draw,
    Measured,
    NotAsked,
    Request,
    ScoreProtocol,
    Skipped,
    judged,
    patients_of,
)
from medclip_debias.evaluation.protocols.retrieval import report_scores
from medclip_debias.files import read_json

Floats = NDArray[np.float64]
KINDS = ("original", "negated", "omitted")
"""The three reports of a triplet, and their columns in a table."""
_PUBLISHED = {"original": "report", "negated": "negation", "omitted": "omitted"}
_REMEDY = "give CXR-Align's cxr-align.json, or a table with the columns original, negated, omitted"


@dataclass(frozen=True)
class Triplet:
    """Three reports of the image in ``row``, in the order of `KINDS`, whole and in sentences."""

    row: int
    texts: tuple[str, str, str] = field(repr=False)
    sentences: tuple[tuple[str, ...], ...] = field(repr=False)


def read_triplets(
    path: Path, data: PreparedSet, split: str, views: Views = "frontal"
) -> tuple[list[Triplet], dict[str, str | int]]:
    """Triplets of a file on the images of ``split`` and those held out, of a study the first.

    Returns:
        The triplets in the order of the set's rows, and ``source``: the file, its hash, and what
        of its ``rows`` was left aside and why.
    """
    table = _published(path) if path.suffix.lower() == ".json" else read_table(path, KINDS)
    keyed = KeyedTable.of(path, table, data)
    inside = keyed.listed(range(len(keyed.ids)))
    splits = data.images["split"].tolist()
    ours = [row for row in inside if splits[row] in (split, HELD_OUT)]
    frontal = judged(data, ours, views)
    first: dict[str, int] = {}
    for row in frontal:
        first.setdefault(keyed.ids[row], row)
    triplets = []
    without = unchanged = 0
    for name, row in first.items():
        cells = table.iloc[keyed.place[name]]
        texts = (str(cells[KINDS[0]]), str(cells[KINDS[1]]), str(cells[KINDS[2]]))
        cut = tuple(
            tuple(dict.fromkeys(s for _, s in report_sentences(text).sentences)) for text in texts
        )
        if not all(cut):
            without += 1
        elif cut[0] in cut[1:]:
            unchanged += 1
        else:
            triplets.append(Triplet(row, texts, cut))
    source = keyed.source("triplets") | {
        "images_of_other_splits": len(inside) - len(ours),
        OTHER_VIEWS: len(ours) - len(frontal),
        "further_images_of_a_study": len(frontal) - len(first),
        "without_sentence": without,
        "unchanged": unchanged,
    }
    if not triplets:
        raise Skipped(
            f"{path.name} gives no triplet of the split '{split}': of its {source['rows']} rows "
            f"{source['rows_not_in_set']} name nothing in the set; of the images "
            f"{source['images_of_other_splits']} are of other splits, {source[OTHER_VIEWS]} of "
            f"other views, {without} have a report without a sentence, {unchanged} one that "
            "equals the original."
        )
    return triplets, source


def _published(path: Path) -> pd.DataFrame:
    """CXR-Align's JSON as a table; its rows are numbered from 1."""
    content = read_json(path, _REMEDY)
    rows: list[dict[str, str]] = []
    for number, group in enumerate(content.values(), start=1):
        if not isinstance(group, Mapping):
            raise UserError(f"{path}: group {number} is not an object of image ids; {_REMEDY}.")
        for name, case in group.items():
            row = {"image_id": str(name).strip()}
            for kind, key in _PUBLISHED.items():
                text = case.get(key) if isinstance(case, Mapping) else None
                if not isinstance(text, str):
                    raise UserError(
                        f"{path}, entry {len(rows) + 1}: has no text '{key}'; {_REMEDY}."
                    )
                row[kind] = text
            rows.append(row)
    if not rows:
        raise UserError(f"{path}: holds no triplet; {_REMEDY}.")
    return pd.DataFrame(rows, dtype=object, index=pd.RangeIndex(1, len(rows) + 1))


class ReportTriplets(ScoreProtocol):
    """The protocol on the triplets of a file."""

    name = file = "triplets"

    def __init__(self, request: Request) -> None:
        if request.triplets is None:
            raise NotAsked("No triplets were given.")
        self._data, self._options = request.data, request.options
        self._triplets, self._source = read_triplets(
            request.triplets, request.data, request.split, request.options.views
        )
        self._parts = [
            [(text,) for text in triplet.texts]
            if request.options.triplet_reports == "whole"
            else triplet.sentences
            for triplet in self._triplets
        ]
        self.texts = list(dict.fromkeys(t for three in self._parts for each in three for t in each))
        self.rows = frozenset(triplet.row for triplet in self._triplets)

    def measure(self, draw: Draw) -> Measured:
        # Sorted, so that reports with the same sentences score the same to the last bit.
        columns = [
            [sorted(self.column[t] for t in each) for each in three] for three in self._parts
        ]
        rows, how = [triplet.row for triplet in self._triplets], self._options.report_score
        scores = np.stack(
            [
                report_scores(self.scores[row][None], own, how)[0]
                for row, own in zip(rows, columns, strict=True)
            ]
        )
        names = self._data.images["image_id"].iloc[rows]
        # With the texts, so that results of two versions of a file are never paired.
        texts = ["\0".join(triplet.texts).encode() for triplet in self._triplets]
        digests = [hashlib.sha256(text).hexdigest() for text in texts]
        head = {
            "id": [f"{name}:{digest}" for name, digest in zip(names, digests, strict=True)],
            "patient": patients_of(self._data, rows),
        }
        of_kind = {f"score_{kind}": scores[:, place] for place, kind in enumerate(KINDS)}
        items = pd.DataFrame(head | triplet_hits(scores) | of_kind)
        details = {
            "images": len(items),
            "patients": items["patient"].nunique(),
            "distinct_texts": len(self.texts),
            "source": self._source,
        }
        return self.measured(draw, items, details)


def triplet_hits(scores: Floats) -> dict[str, Floats]:
    """For each triplet what counts for each share: 1, 0, or a tie's part ``[triplets]``.

    Reports that tie for the highest score share it: 1/2 or 1/3 for the original. Scores are
    ``[triplets, 3]``, in the order of `KINDS`.
    """
    original = scores[:, :1]
    above = (original > scores) + 0.5 * (original == scores)
    return {
        "original_best": highest_shares(scores)[:, 0],
        "original_above_negated": above[:, 1],
        "original_above_omitted": above[:, 2],
    }
