"""What the tables of a prepared set hold, and the hashes that name its content."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias.files import file_hash

if TYPE_CHECKING:
    import pandas as pd

    from medclip_debias.config import PrepareSettings

FORMAT_VERSION = 1

IMAGE_COLUMNS = ("image_id", "study_id", "patient_id", "view", "split", "height", "width")
STUDY_COLUMNS = ("study_id", "patient_id", "split")
SENTENCE_COLUMNS = ("study_id", "section", "position", "text")
TEMPLATE, STATED = "template", "stated"
"""Sections of sentences that labels say, not a report (``prepare --label-sentences``): those to
learn from, and those that only state what else is absent."""
PHRASE_COLUMNS = ("phrase_id", "image_id", "category", "text", "split", "boxes")
MASK_COLUMN = "mask"
"""Last column of ``phrases.parquet`` where the source has masks: COCO's RLE as JSON, or ``""``."""
TABLES = {
    "images": IMAGE_COLUMNS,
    "studies": STUDY_COLUMNS,
    "sentences": SENTENCE_COLUMNS,
    "phrases": PHRASE_COLUMNS,
}
MANIFEST = "manifest.parquet"
MANIFEST_COLUMNS = ("image_id", "study_id", "split", "row", "pixel_hash", "text_hash")
HASHES = "hashes"
"""Key of the tables' hashes in ``meta.json``."""
PHRASE_BOXES = "phrase_boxes.parquet"
"""What became of the boxes of each phrase of the source, in its order: `PHRASE_BOX_COLUMNS`."""
PHRASE_BOX_COLUMNS = (
    *("phrase_id", "image_id", "split", "boxes"),
    *("flat", "outside", "clipped", "scaled", "other_shape"),
)


class ContentHash:
    """Names the content of a prepared set: its settings, every table's values, every row.

    The values are hashed, not the Parquet bytes, which change with the library's version. Call
    `rows` for each of `TABLES` in that order, then `pixels`.
    """

    def __init__(self, settings: PrepareSettings, kind: str) -> None:
        header = {"format": FORMAT_VERSION, "kind": kind}
        self._digest = hashlib.sha256()
        self._update(header | {"settings": settings.model_dump(mode="json")})

    def rows(self, name: str, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> int:
        """Add a table, row by row; return their number."""
        self._update([name, list(columns)])
        count = 0
        for row in rows:
            self._update(row)
            count += 1
        self._update(count)
        return count

    def pixels(self, hashes: Iterable[str]) -> None:
        """Add the hash of every row of ``images.bin`` (`short_hash`)."""
        for value in hashes:
            self._update(value)

    def hexdigest(self) -> str:
        """Return the hash of what was added."""
        return self._digest.hexdigest()

    def _update(self, value: Any) -> None:
        self._digest.update(_canonical(value))


def short_hash(content: bytes) -> str:
    """Return 32 hex digits that name some bytes, such as the pixels of one row."""
    return hashlib.sha256(content).hexdigest()[:32]


def manifest_hash(manifest: pd.DataFrame) -> str:
    """Return the hash of a manifest's values: equal for two people who train on the same rows."""
    digest = hashlib.sha256()
    for row in manifest[list(MANIFEST_COLUMNS)].itertuples(index=False, name=None):
        digest.update(_canonical(row))
    return digest.hexdigest()


def _canonical(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode() + b"\n"


def table_hashes(folder: Path, others: Iterable[str] = ()) -> dict[str, str]:
    """Hash of the file of each table in ``folder``, and of the others, for ``meta.json``."""
    names = [*(f"{name}.parquet" for name in TABLES), MANIFEST, PHRASE_BOXES, *others]
    return {name: file_hash(folder / name) for name in names}
