"""Names of findings: how archives spell them, and what a box says that has only a name.

Archives name classes, not sentences. One rule for all of them: a class is spelt as this project
spells it where the two are the same finding, and its phrase is that name as a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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


@dataclass
class FindingBoxes:
    """Boxes that have the name of a finding; those of one name in one image are one phrase.

    Attributes:
        annotated_size: width and height of every image when it was annotated; ``None``: as it is.
    """

    annotated_size: tuple[int, int] | None = None
    _boxes: dict[tuple[str, str], list[Box]] = field(default_factory=dict)

    def add(self, image_id: str, finding: str, boxes: Iterable[Box]) -> None:
        """Add boxes of a finding, named as `finding_name` does, in an image."""
        self._boxes.setdefault((image_id, finding), []).extend(boxes)

    def phrases(self, masks: Mapping[tuple[str, str], Mask] | None = None) -> list[PhraseRecord]:
        """Return one phrase for each image and finding, in the order in which they came.

        Args:
            masks: by image and finding; their size is then the one that was annotated.
        """
        counts: dict[str, int] = {}
        found = []
        for (image_id, name), boxes in self._boxes.items():
            number = counts[image_id] = counts.get(image_id, 0) + 1
            mask = (masks or {}).get((image_id, name))
            size = (mask.width, mask.height) if mask is not None else self.annotated_size
            ids = f"{image_id}/{number}", image_id
            text = finding_sentence(name)
            found.append(PhraseRecord(*ids, name, text, tuple(boxes), size, "", mask))
        return found


def box_of(values: Sequence[object]) -> Box | None:
    """Return the box of four cells or JSON numbers, or ``None`` where one is no number.

    >>> box_of(["1", "2.5", "3", "4"]), box_of(["1", "", "3", "4"])
    ((1.0, 2.5, 3.0, 4.0), None)
    """
    numbers = []
    for value in values:
        try:
            numbers.append(float(value) if isinstance(value, str | int | float) else math.nan)
        except ValueError:
            return None
    if len(numbers) != 4 or not all(abs(number) < _FAR for number in numbers):
        return None
    return numbers[0], numbers[1], numbers[2], numbers[3]


def class_labels(present: Iterable[str], classes: Sequence[str]) -> dict[str, float | None]:
    """Return 1 for the classes that an image shows and 0 for the others."""
    names = set(present)
    return {name: float(name in names) for name in classes}
