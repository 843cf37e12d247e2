"""A model's results on one image: sentences and boxes, from which every format is written."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medclip_debias.grounding.regions import ScoredRegion

RESEARCH = "For research, not for diagnosis"
MANUFACTURER = "medclip-debias"


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
    boxes: tuple[ScoredRegion, ...]
    probability: float | None

    @classmethod
    def of(cls, row: Mapping[str, Any], number: int) -> SentenceResult:
        """From an entry of ``groundings.json``."""
        boxes = tuple(ScoredRegion(**one | {"box": tuple(one["box"])}) for one in row["boxes"])
        probability = (row.get("in_image") or {}).get("probability")
        return cls(number, row["text"], row["score"], boxes, probability)

    @property
    def code(self) -> str:
        """A private code of the sentence, 16 characters at most, the same wherever it is scored."""
        return f"S{hashlib.sha256(self.text.encode()).hexdigest()[:12]}"


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
