"""What the releases of CheXpert share: paths that name patient, study and view."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from medclip_debias.data.records import Step, file_stem
from medclip_debias.data.sources.archive import counted_rows
from medclip_debias.data.sources.ids import is_blank

if TYPE_CHECKING:
    import pandas as pd

_PATH = re.compile(r"([^/\\]+)[/\\](study[^/\\]*)[/\\][^/\\]+\.(?:jpe?g|png|dcm)$", re.IGNORECASE)


def named_rows(path: Path, table: pd.DataFrame, column: str, counted: list[Step]) -> pd.DataFrame:
    """Return the rows whose ``column`` names patient, study and image file; count the others."""
    good = table[column].map(lambda name: _PATH.search(name) is not None)
    step = f"path of {path.name} names patient, study and image"
    return counted_rows(table, good, step, counted)


def study_of(name: str) -> tuple[str, str]:
    """Return patient and study that the path of an image names.

    >>> study_of("CheXpert-v1.0/train/patient00001/study1/view1_frontal.jpg")
    ('patient00001', 'study1')
    """
    found = _PATH.search(name)
    if found is None:
        raise ValueError("rows without such a path are left aside by named_rows")
    return found[1], found[2]


def view_of(side: str, way: str, name: str) -> str:
    """Return the view of an image: AP, PA, LATERAL, FRONTAL (AP or PA unknown) or ``""``."""
    if is_blank(side):
        side = file_stem(name).rpartition("_")[2]
    if side.lower() == "lateral":
        return "LATERAL"
    if not is_blank(way):
        return way
    return "FRONTAL" if side.lower() == "frontal" else ""
