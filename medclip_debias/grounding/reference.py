"""Reference boxes of single images, from MS-CXR or any COCO file with phrases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from medclip_debias.data.boxes import Fitted, fit_boxes
from medclip_debias.data.records import ImageRecord, PhraseRecord, file_stem
from medclip_debias.data.sources.ms_cxr import BoxFile
from medclip_debias.errors import UserError
from medclip_debias.grounding.denials import normalised

Match = Literal["phrase", "image", "none"]
_ASIDE = {
    "other_shape": "phrases of an image with another ratio of its sides",
    "flat": "boxes without area",
    "outside": "boxes outside their image",
    "elsewhere": "images whose name the file lists in other folders (write the folders alike if"
    " they are the same)",
}


@dataclass(frozen=True)
class ReferenceBoxes:
    """Annotated boxes by image and phrase; use `ReferenceBoxes.read`."""

    phrases: dict[str, list[PhraseRecord]]
    elsewhere: int = 0
    _fitted: dict[str, list[Fitted]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, images: Sequence[Path]) -> ReferenceBoxes:
        """Read the boxes of ``images``, which are matched by path.

        A name in the file that has no folders fits an image of that name in any folder; one that
        has folders fits an image that lies in them. A file that is no COCO (or MS-CXR) file, has
        no box for any of the images, or has a name that fits several of them is refused.
        """
        path = Path(path)
        records = [ImageRecord(_key(image), "", "", image, "", "", str(image)) for image in images]
        phrases: dict[str, list[PhraseRecord]] = {}
        for phrase in BoxFile(path, records, Path()).phrases():
            phrases.setdefault(phrase.image_id, []).append(phrase)
        ours = {_key(image): phrases.pop(_key(image), []) for image in images}
        others = {file_stem(name) for name in phrases}
        without = sum(file_stem(i.name) in others for i in images if not ours[_key(i)])
        references = cls(ours, without)
        if not any(ours.values()):
            raise UserError(
                f"{path}: holds no box for the images given; are they of this set?"
                f"{' '.join(['', *references.left_aside()])}"
            )
        return references

    def of(self, image: Path, text: str, shape: tuple[int, int]) -> tuple[list[list[float]], Match]:
        """Boxes for a sentence in an image of ``shape``, in the image's own pixels.

        Those of the phrase that equals the sentence (letter case, spaces and a final full stop
        aside); where there is no such phrase, all boxes of the image. Boxes annotated at another
        size are scaled, and left aside where the ratio of the sides is another one.
        """
        pairs = self._pairs(image, shape)
        same = [pair for pair in pairs if normalised(pair[0].text) == normalised(text)]
        boxes = [box for _, fitted in same or pairs for box in fitted.boxes]
        return boxes, ("none" if not boxes else "phrase" if same else "image")

    def phrases_of(
        self, image: Path, shape: tuple[int, int]
    ) -> tuple[list[tuple[str, list[list[float]]]], int]:
        """Every phrase of an image with its boxes, and how many boxes were left aside."""
        pairs = self._pairs(image, shape)
        aside = sum(
            len(phrase.boxes) if fitted.other_shape else fitted.flat + fitted.outside
            for phrase, fitted in pairs
        )
        return [(phrase.text, fitted.boxes) for phrase, fitted in pairs if fitted.boxes], aside

    def _pairs(self, image: Path, shape: tuple[int, int]) -> list[tuple[PhraseRecord, Fitted]]:
        key, (height, width) = _key(image), shape
        phrases = self.phrases.get(key, [])
        if key not in self._fitted:
            self._fitted[key] = [
                fit_boxes(one.boxes, one.annotated_size, (width, height)) for one in phrases
            ]
        return list(zip(phrases, self._fitted[key], strict=True))

    def left_aside(self) -> list[str]:
        """A sentence on the boxes that could not be used, of the images asked for so far."""
        counts = Counter({"elsewhere": self.elsewhere})
        for fitted in (one for phrases in self._fitted.values() for one in phrases):
            for name in ("other_shape", "flat", "outside"):
                counts[name] += getattr(fitted, name)
        parts = [f"{words}: {counts[name]}" for name, words in _ASIDE.items() if counts[name]]
        return [f"reference boxes skipped; {'; '.join(parts)}."] if parts else []


def _key(image: Path) -> str:
    return image.absolute().as_posix()
