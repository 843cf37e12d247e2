"""Laterality: does an image score higher with "left effusion" or with "right effusion"?

Every sentence of a report that affirms something of one side is asked of its own image beside the
same sentence with left and right exchanged. Where no report does, as in archives of labels, a
finding whose boxes all lie in one half of a frontal image is asked so. A model that reads no sides
wins half of them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pandas as pd

from medclip_debias.data.boxes import side_of
from medclip_debias.data.templates import sided_sentences
from medclip_debias.evaluation.phrase_selection import Phrase, phrases_of
from medclip_debias.evaluation.protocol import (
    Draw,
    Measured,
    Request,
    ScoreProtocol,
    Skipped,
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

    def other_side(match: re.Match[str]) -> str:
        word = match.group()
        other = "right" if word.lower() == "left" else "left"
        capital = other.capitalize() if word[0].isupper() else other
        return other.upper() if word.isupper() else capital

    return _SIDE.sub(other_side, sentence)


def sides_of(sentence: str) -> set[str]:
    """The sides that a sentence names.

    >>> sides_of("Left effusion."), sides_of("Nothing is left out, right?") == {"left", "right"}
    ({'left'}, True)
    """
    return {match.group().lower() for match in _SIDE.finditer(sentence)}


def sided_findings(request: Request, left_aside: Counter[str]) -> Iterator[tuple[int, str]]:
    """Rows of images, and of each a finding whose boxes lie on one side, said with it.

    The others are counted in ``left_aside``.
    """
    try:
        phrases = request.once(phrases_of).phrases
    except Skipped:
        return
    found: dict[tuple[int, str], list[Phrase]] = {}
    for phrase in phrases:
        found.setdefault((phrase.row, phrase.category), []).append(phrase)
    for (row, category), alike in found.items():
        boxes = [(x, y, w, h) for phrase in alike for x, y, w, h in phrase.boxes]
        side = side_of(boxes, alike[0].geometry.width)
        said = sided_sentences(category, side) if side else []
        if not alike[0].groundable:
            left_aside["denials"] += 1
        elif not request.data.frontal[row]:
            left_aside["other_views"] += 1
        elif not said:
            left_aside["without_words" if side else "both_sides"] += 1
        else:
            yield row, said[0]


class LateralityProtocol(ScoreProtocol):
    """The sentences of the reports of some images, each beside its mirror."""

    name = file = "laterality"

    def __init__(self, request: Request) -> None:
        data = request.data
        rows_of_study: dict[str, list[int]] = {}
        for row in rows_of_split(data, request.split, request.options.views):
            rows_of_study.setdefault(str(data.images["study_id"].iloc[row]), []).append(row)
        self._left_aside: Counter[str] = Counter()
        asked: dict[tuple[int, str], None] = {}
        table = data.sentences[data.sentences["study_id"].isin(rows_of_study)]
        for study, text in zip(table["study_id"], table["text"], strict=True):
            sides = sides_of(text)
            if len(sides) == 1 and is_groundable(text):
                asked |= dict.fromkeys((row, text) for row in rows_of_study[study])
            elif sides:
                self._left_aside["both_sides" if len(sides) == 2 else "denials"] += 1
        self._asked_of = "sentences of reports" if asked else "findings with boxes"
        asked = asked or dict.fromkeys(sided_findings(request, self._left_aside))
        if not asked:
            raise Skipped(
                f"No report of the split '{request.split}' affirms something of one side, and no"
                " finding has its boxes on one."
            )
        self._data, self._asked = data, list(asked)
        texts = [text for _, text in asked]
        self.texts = list(dict.fromkeys([*texts, *map(mirrored, texts)]))
        self.rows = frozenset(row for row, _ in asked)

    def measure(self, draw: Draw) -> Measured:
        pairs = [
            (self.scores[row][self.column[text]], self.scores[row][self.column[mirrored(text)]])
            for row, text in self._asked
        ]
        own, mirror = np.array(pairs, dtype=np.float64).T
        names = self._data.images["image_id"]
        items = pd.DataFrame(
            {
                "id": [f"{names.iloc[row]}:{text}" for row, text in self._asked],
                "patient": patients_of(self._data, [row for row, _ in self._asked]),
                "right_side": (own > mirror) + 0.5 * (own == mirror),
                "score": own,
                "score_mirror": mirror,
            }
        )
        details = {
            "asked": self._asked_of,
            "sentences": len(items),
            "distinct_sentences": len({text for _, text in self._asked}),
            "images": len(self.rows),
            "patients": items["patient"].nunique(),
            "left_aside": dict(self._left_aside),
        }
        return self.measured(draw, items, details)
