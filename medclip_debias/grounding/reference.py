"""Reference boxes of single images, from MS-CXR or any COCO file with phrases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from medclip_debias.data.records import ImageRecord, PhraseRecord, file_stem
from medclip_debias.data.sources.ms_cxr import read_phrases, scale_boxes
from medclip_debias.errors import UserError

Match = Literal["phrase", "image", "none"]


@dataclass(frozen=True)
class ReferenceBoxes:
    """Annotated boxes by image and phrase; use `ReferenceBoxes.read`."""

    phrases: dict[str, list[PhraseRecord]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, images: Sequence[Path]) -> ReferenceBoxes:
        """Read the boxes of ``images``, which are matched by file name without its ending.

        Raises:
            UserError: it is no COCO (or MS-CXR) file, or has no box for any of the images.
        """
        path = Path(path)
        records = [
            ImageRecord(file_stem(image.name), "", "", image, "", "", str(image))
            for image in images
        ]
        wanted = {record.image_id for record in records}
        phrases: dict[str, list[PhraseRecord]] = {}
        for phrase in read_phrases(path, records, Path()):
            if phrase.image_id in wanted:
                phrases.setdefault(phrase.image_id, []).append(phrase)
        if not phrases:
            raise UserError(f"{path}: holds no box for the images given; are they of this set?")
        return cls(phrases)

    def of(self, image: Path, text: str, shape: tuple[int, int]) -> tuple[list[list[float]], Match]:
        """Boxes for a sentence in an image, in the image's own pixels.

        Those of the phrase that equals the sentence (letter case, spaces and a final full stop
        aside); where there is no such phrase, all boxes of the image.

        Args:
            image: the image's file.
            text: the sentence.
            shape: the image's rows and columns; boxes annotated at another size are scaled.
        """
        known = self.phrases.get(file_stem(image.name), [])
        same = [phrase for phrase in known if _plain(phrase.text) == _plain(text)]
        height, width = shape
        boxes = [
            box
            for phrase in same or known
            for box in scale_boxes(phrase.boxes, phrase.annotated_size, (width, height))
        ]
        return boxes, ("none" if not boxes else "phrase" if same else "image")


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().rstrip(".").strip().lower()
