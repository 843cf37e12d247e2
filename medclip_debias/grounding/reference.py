"""Reference boxes of single images, from MS-CXR or any COCO file with phrases."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from medclip_debias.data.boxes import Fitted, fit_boxes
from medclip_debias.data.records import ImageRecord, PhraseRecord, file_stem
from medclip_debias.data.sources.ms_cxr import BoxFile
from medclip_debias.errors import UserError

Match = Literal["phrase", "image", "none"]
_SAID = {
    "other_shape": "phrases were annotated on an image with another ratio of its sides",
    "flat": "boxes have no area",
    "outside": "boxes lie outside their image",
    "elsewhere": "images have a name that the file lists in other folders (write the folders alike"
    " if they are the same)",
}


@dataclass(frozen=True)
class ReferenceBoxes:
    """Annotated boxes by image and phrase; use `ReferenceBoxes.read`.

    Attributes:
        phrases: by image.
        elsewhere: images without any, whose name the file lists in other folders.
    """

    phrases: dict[str, list[PhraseRecord]] = field(default_factory=dict)
    elsewhere: int = 0
    _fitted: dict[str, list[Fitted]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, images: Sequence[Path]) -> ReferenceBoxes:
        """Read the boxes of ``images``, which are matched by path.

        A name in the file that has no folders fits an image of that name in any folder; one that
        has folders fits an image that lies in them.
        """
        path = Path(path)
        records = [ImageRecord(_key(image), "", "", image, "", "", str(image)) for image in images]
        wanted = {record.image_id for record in records}
        phrases: dict[str, list[PhraseRecord]] = {}
        others: set[str] = set()
        for phrase in BoxFile(path, records, Path()).phrases():
            if phrase.image_id in wanted:
                phrases.setdefault(phrase.image_id, []).append(phrase)
            else:
                others.add(file_stem(phrase.image_id))
        without = (image for image in images if _key(image) not in phrases)
        references = cls(phrases, sum(file_stem(image.name) in others for image in without))
        if not phrases:
            hint = " ".join(references.left_aside())
            raise UserError(
                f"{path}: holds no box for the images given; are they of this set?"
                f"{' ' if hint else ''}{hint}"
            )
        return references

    def of(self, image: Path, text: str, shape: tuple[int, int]) -> tuple[list[list[float]], Match]:
        """Boxes for a sentence in an image, in the image's own pixels.

        Those of the phrase that equals the sentence (letter case, spaces and a final full stop
        aside); where there is no such phrase, all boxes of the image.
        """
        pairs = self._pairs(image, shape)
        same = [pair for pair in pairs if _plain(pair[0].text) == _plain(text)]
        boxes = [box for _, fitted in same or pairs for box in fitted.boxes]
        return boxes, ("none" if not boxes else "phrase" if same else "image")

    def phrases_of(
        self, image: Path, shape: tuple[int, int]
    ) -> tuple[list[tuple[str, list[list[float]]]], int]:
        """Every phrase of an image that has boxes, with these, in the image's own pixels.

        Returns:
            The phrases, and how many boxes of the image were left aside.
        """
        pairs = self._pairs(image, shape)
        aside = sum(
            len(phrase.boxes) if fitted.other_shape else fitted.flat + fitted.outside
            for phrase, fitted in pairs
        )
        return [(phrase.text, fitted.boxes) for phrase, fitted in pairs if fitted.boxes], aside

    def _pairs(self, image: Path, shape: tuple[int, int]) -> list[tuple[PhraseRecord, Fitted]]:
        key = _key(image)
        known = self.phrases.get(key, [])
        height, width = shape
        if key not in self._fitted:
            self._fitted[key] = [
                fit_boxes(phrase.boxes, phrase.annotated_size, (width, height)) for phrase in known
            ]
        return list(zip(known, self._fitted[key], strict=True))

    def left_aside(self) -> list[str]:
        """Return a sentence on the boxes that could not be used, of the images asked for so far."""
        counts: Counter[str] = Counter()
        for fitted in (one for phrases in self._fitted.values() for one in phrases):
            counts["other_shape"] += fitted.other_shape
            counts["flat"] += fitted.flat
            counts["outside"] += fitted.outside
        counts["elsewhere"] = self.elsewhere
        parts = [f"{counts[name]} {words}" for name, words in _SAID.items() if counts[name]]
        return [f"reference boxes skipped: {'; '.join(parts)}."] if parts else []


def _key(image: Path) -> str:
    return image.absolute().as_posix()


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().rstrip(".").strip().lower()
