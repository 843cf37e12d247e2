"""Laterality: does an image score higher with "left effusion" or with "right effusion"?

Every sentence of a report that affirms something of one side is asked of its own image beside the
same sentence with left and right exchanged. A model that reads no sides wins half of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
import pandas as pd

from medclip_debias.data.store import PreparedSet
from medclip_debias.data.views import Views
from medclip_debias.evaluation.bootstrap import Statistics, weighted_mean
from medclip_debias.evaluation.protocol import (
    Draw,
    Measured,
    Request,
    ScoreProtocol,
    Skipped,
    columns_of,
    patients_of,
    rows_of_split,
)
from medclip_debias.grounding.denials import is_groundable

_SIDE = re.compile(r"\b(?:left|right)(?=\b|sided)", re.IGNORECASE)


def mirrored(sentence: str) -> str:
    """``sentence`` with left and right exchanged, in the same letter case.

    >>> mirrored("Right-sided port; left lung clear.")
    'Left-sided port; right lung clear.'
    """

    def other_side(found: re.Match[str]) -> str:
        word = found.group()
        other = "right" if word.lower() == "left" else "left"
        capital = other.capitalize() if word[0].isupper() else other
        return other.upper() if word.isupper() else capital

    return _SIDE.sub(other_side, sentence)


def sides_of(sentence: str) -> set[str]:
    """The sides that a sentence names.

    >>> sides_of("Left effusion."), sides_of("Nothing is left out, right?") == {"left", "right"}
    ({'left'}, True)
    """
    return {found.group().lower() for found in _SIDE.finditer(sentence)}


class LateralityProtocol(ScoreProtocol):
    """The sentences of the reports of some images, each beside its mirror."""

    name = file = "laterality"

    def __init__(self, data: PreparedSet, split: str, views: Views = "frontal") -> None:
        rows_of_study: dict[str, list[int]] = {}
        for row in rows_of_split(data, split, views):
            rows_of_study.setdefault(str(data.images["study_id"].iloc[row]), []).append(row)
        self._left_aside: Counter[str] = Counter()
        asked: dict[tuple[int, str], None] = {}
        table = data.sentences[data.sentences["study_id"].isin(rows_of_study)]
        for study, text in zip(table["study_id"], table["text"], strict=True):
            sides = sides_of(text)
            if len(sides) == 1 and is_groundable(text, ""):
                asked |= dict.fromkeys((row, text) for row in rows_of_study[study])
            elif sides:
                self._left_aside["both_sides" if len(sides) == 2 else "denials"] += 1
        if not asked:
            raise Skipped(f"No report of the split '{split}' affirms something of one side.")
        self.asked = list(asked)
        texts = [text for _, text in asked]
        self.texts = list(dict.fromkeys([*texts, *map(mirrored, texts)]))
        self.rows = frozenset(row for row, _ in asked)
        self._patients = patients_of(data, [row for row, _ in asked])
        names = data.images["image_id"]
        self._ids = [f"{names.iloc[row]}:{text}" for row, text in asked]

    @classmethod
    def plan(cls, request: Request) -> Self:
        return cls(request.data, request.split, request.options.views)

    def measure(self, draw: Draw) -> Measured:
        place = {text: number for number, text in enumerate(self.texts)}
        pairs = [
            (self.scores[row][place[text]], self.scores[row][place[mirrored(text)]])
            for row, text in self.asked
        ]
        own, mirror = np.array(pairs, dtype=np.float64).T
        right = (own > mirror) + 0.5 * (own == mirror)
        head = {"id": self._ids, "patient": self._patients}
        items = pd.DataFrame(head | {"right_side": right, "score": own, "score_mirror": mirror})
        details = {
            "sentences": len(self.asked),
            "distinct_sentences": len({text for _, text in self.asked}),
            "images": len(self.rows),
            "patients": len(set(self._patients)),
            "left_aside": dict(self._left_aside),
        }
        estimates = draw.estimates(self.statistics(details, items), self._patients)
        return Measured(estimates.rows(n=len(self.asked)), details, items)

    @staticmethod
    def statistics(details: Mapping[str, Any], items: pd.DataFrame) -> Statistics:
        """The share of sentences that beat their mirror."""
        del details
        (hits,) = columns_of(items, "right_side")
        return lambda weights: {"right_side": weighted_mean(hits, weights)}
