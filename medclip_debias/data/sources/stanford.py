"""What the releases of CheXpert share: paths that name patient, study and view."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from medclip_debias.data.records import file_stem
from medclip_debias.data.sources.archive import ArchiveSource
from medclip_debias.data.sources.ids import is_blank

if TYPE_CHECKING:
    import pandas as pd

_PATH = r"(?i)([^/\\]+)[/\\](study[^/\\]*)[/\\][^/\\]+\.(?:jpe?g|png|dcm)$"


def named_rows(source: ArchiveSource, path: Path, table: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the rows whose ``column`` names ``owner``, ``study`` and ``image``; count the others.

    ``CheXpert-v1.0/train/patient00001/study1/view1_frontal.jpg`` names ``patient00001``,
    ``study1`` and ``view1_frontal``.
    """
    named = table[column].str.extract(_PATH)
    step = f"path of {path.name} names patient, study and image"
    rows = source.keep(table, named[0].notna(), step).copy()
    rows["owner"], rows["study"] = named[0][rows.index], named[1][rows.index]
    rows["image"] = rows[column].map(file_stem)
    return rows


def view_of(side: str, way: str, name: str) -> str:
    """Return the view of an image: AP, PA, LATERAL, FRONTAL (AP or PA unknown) or ``""``."""
    if is_blank(side):
        side = file_stem(name).rpartition("_")[2]
    if side.lower() == "lateral":
        return "LATERAL"
    if not is_blank(way):
        return way
    return "FRONTAL" if side.lower() == "frontal" else ""
