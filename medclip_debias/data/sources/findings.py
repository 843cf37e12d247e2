"""Findings that have a name, boxes and perhaps a mask: what archives say without a sentence.

A class is spelt as this project spells it where the two are the same finding, and its phrase is
that name as a sentence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated

from pydantic import Field

from medclip_debias.data.records import Box, Mask, PhraseRecord

SPELLINGS = {
    "Effusion": "Pleural Effusion",
    "Infiltrate": "Infiltration",
    "Airspace Opacity": "Lung Opacity",
    "ActiveTuberculosis": "Active Tuberculosis",
    "ObsoletePulmonaryTuberculosis": "Obsolete Pulmonary Tuberculosis",
}
"""Classes of archives that are a finding of another name here. Others keep their name."""

_FAR = 1e9  # pixels; NaN is not nearer

Corners = Annotated[
    list[Annotated[float, Field(gt=-_FAR, lt=_FAR)]], Field(min_length=4, max_length=4)
]
"""Four numbers of a JSON file."""

Count = Callable[[str, str, int, int], None]
"""Notes a step of the funnel: its name, unit, how many are kept, and of how many."""


def finding_name(name: str) -> str:
    """Return the project's name of an archive's class.

    >>> finding_name("Effusion"), finding_name("Pleural_Thickening"), finding_name(" Mass ")
    ('Pleural Effusion', 'Pleural Thickening', 'Mass')
    """
    plain = " ".join(name.replace("_", " ").split())
    return SPELLINGS.get(plain, plain)


def finding_sentence(name: str) -> str:
    """Return the phrase of a finding: its name as a sentence.

    >>> finding_sentence("Pleural Effusion")
    'Pleural effusion.'
    """
    return f"{name[:1].upper()}{name[1:].lower()}."


def box_of(values: object, *, corners: bool = False) -> Box | None:
    """Return the box of four cells or JSON numbers, ``None`` where they are something else.

    >>> box_of(["1", "2.5", "3", "4"]), box_of(["1", "", "3", "4"])
    ((1.0, 2.5, 3.0, 4.0), None)
    """
    if not isinstance(values, list | tuple) or len(values) != 4:
        return None
    try:
        x, y, a, b = (float(v) if isinstance(v, str | int | float) else math.nan for v in values)
    except ValueError:
        return None
    if not all(abs(number) < _FAR for number in (x, y, a, b)):
        return None
    return (x, y, a - x, b - y) if corners else (x, y, a, b)


class Marks:
    """The findings of images, with their boxes and masks; one phrase an image and finding.

    Attributes:
        count: notes what was left aside while they were read.
        present: findings by image, also of those whose box or mask cannot be read.
        masks: by image and finding, at the size of the image that was annotated.
    """

    def __init__(self, count: Count) -> None:
        self.count = count
        self.present: dict[str, set[str]] = {}
        self.masks: dict[tuple[str, str], Mask] = {}
        self._boxes: dict[tuple[str, str], list[Box]] = {}
        self._texts: dict[str, str] = {}

    def add(self, image: str, finding: str, boxes: Iterable[Box], text: str = "") -> None:
        """Add boxes of a finding, whose phrase is its `finding_sentence` or ``text``."""
        self.present.setdefault(image, set()).add(finding)
        self._boxes.setdefault((image, finding), []).extend(boxes)
        self._texts[finding] = text or finding_sentence(finding)

    def phrases(
        self, sizes: Mapping[str, tuple[int, int]], splits: Mapping[str, str]
    ) -> list[PhraseRecord]:
        """Return the phrases in the order in which they came."""
        numbers: Counter[str] = Counter()
        phrases = []
        for (image, finding), boxes in self._boxes.items():
            numbers[image] += 1
            mask = self.masks.get((image, finding))
            size = (mask.width, mask.height) if mask is not None else sizes.get(image)
            about = image, finding, self._texts[finding], tuple(boxes), size
            name = f"{image}/{numbers[image]}"
            phrases.append(PhraseRecord(name, *about, splits.get(image, ""), mask))
        return phrases
