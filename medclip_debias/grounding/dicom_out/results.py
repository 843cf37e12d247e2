"""A model's results on one image: sentences and boxes, from which every format is written."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.grounding.ground import Grounding

RESEARCH = "For research, not for diagnosis"
MANUFACTURER = "medclip-debias"


@dataclass(frozen=True)
class BoxResult:
    """One box on an image.

    Attributes:
        box: x, y, width, height, in pixels of the original; pixel (row i, column j) covers
            ``[j, j + 1] x [i, i + 1]``.
        mean: mean score of the pixels it was cut from.
        peak: their highest score.
        confidence: that it shows the sentence, in [0, 1]; None where no rule was asked.
    """

    box: tuple[float, float, float, float]
    mean: float
    peak: float
    confidence: float | None = None

    @property
    def outline(self) -> NDArray[np.float64]:
        """Its corners as a closed line ``[5, 2]`` of (x, y), clockwise from the upper left."""
        x, y, width, height = self.box
        right, below = x + width, y + height
        return np.array([(x, y), (right, y), (right, below), (x, below), (x, y)])

    def mask(self, shape: tuple[int, int]) -> NDArray[np.bool_]:
        """The pixels ``[rows, columns]`` whose centres lie in it."""
        x, y, width, height = self.box
        rows, columns = (np.arange(side) + 0.5 for side in shape)
        down = (rows >= y) & (rows < y + height)
        return down[:, None] & ((columns >= x) & (columns < x + width))[None, :]


@dataclass(frozen=True)
class SentenceResult:
    """One sentence on an image.

    Attributes:
        number: its place among the sentences, from 1.
        text: the sentence.
        score: the model's image-sentence similarity, in [-1, 1].
        boxes: where it is seen; none when boxes were not asked for or none was found.
        probability: that the image shows it, in [0, 1]; None where no rule was asked.
    """

    number: int
    text: str
    score: float
    boxes: tuple[BoxResult, ...]
    probability: float | None

    @classmethod
    def of(cls, grounding: Grounding, row: Mapping[str, Any], number: int) -> SentenceResult:
        """From a grounding and its entry in ``groundings.json``."""
        boxes = tuple(
            BoxResult(tuple(one["box"]), one["mean"], one["peak"], one.get("confidence"))
            for one in row["boxes"]
        )
        probability = (row.get("in_image") or {}).get("probability")
        return cls(number, grounding.text, grounding.score, boxes, probability)

    @property
    def code(self) -> str:
        """A private code of the sentence, 16 characters at most, the same wherever it is scored."""
        return f"S{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"

    @property
    def printed(self) -> str:
        """The sentence as a DICOM value of any length."""
        return printable(self.text)

    @property
    def short(self) -> str:
        """The sentence, cut where DICOM allows 64 characters alone."""
        return shortened(self.text)


@dataclass(frozen=True)
class Algorithm:
    """What made the results.

    Attributes:
        version: of this program.
        model: hash of the model folder, or ``in memory``.
        warning: a sentence about a model that no patient should be shown to, or ``""``.
    """

    version: str
    model: str
    warning: str = ""

    @property
    def uid(self) -> str:
        """The model as a device: the same model always has the same UID."""
        return f"2.25.{uuid.uuid5(uuid.NAMESPACE_OID, f'{MANUFACTURER} {self.model}').int}"

    @property
    def parameters(self) -> Sequence[str]:
        """What a reader of the results must know."""
        return [RESEARCH, f"model {self.model}", *([self.warning] if self.warning else [])]


def printable(text: str) -> str:
    """``text`` with a space for each run of white space, control and format characters.

    DICOM takes no control characters in short values (PS3.5, 6.1.3), and a viewer that prints a
    value must not be steered by it.
    """
    return " ".join("".join(one if one.isprintable() else " " for one in text).split())


def shortened(text: str, most: int = 64) -> str:
    """`printable` text without backslashes, cut to ``most`` characters."""
    text = printable(text.replace("\\", "/"))
    return text if len(text) <= most else f"{text[: most - 3]}..."
