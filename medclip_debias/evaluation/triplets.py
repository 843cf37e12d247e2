"""Triplets of an image's report: as it was written, with one finding negated, with one omitted.

Two forms of file are read. CXR-Align 1.0.0 (Ko et al. 2025, PhysioNet) is a JSON object of groups
(``mimic``); a group maps an image id (``dicom_id``) to ``report``, ``negation``, ``omitted`` and
what was changed (``chosen``, ``location``), as programs that read it publicly do; the file itself
is behind a licence. A table of one's own (CSV or Parquet) has ``image_id``, ``study_id`` or another
key of a label table, and ``original``, ``negated``, ``omitted``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from medclip_debias.data.sources.tables import read_table
from medclip_debias.data.text.reports import report_sentences
from medclip_debias.data.views import Views
from medclip_debias.errors import UserError
from medclip_debias.evaluation.label_table import OTHER_VIEWS, KeyedTable
from medclip_debias.evaluation.protocol import HELD_OUT, Skipped, judged
from medclip_debias.files import read_json

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet

KINDS = ("original", "negated", "omitted")
"""The three reports of a triplet, and their columns in a table."""
_PUBLISHED = {"original": "report", "negated": "negation", "omitted": "omitted"}
_REMEDY = "give CXR-Align's cxr-align.json, or a table with the columns original, negated, omitted"


@dataclass(frozen=True)
class Triplet:
    """One image and its three reports.

    Attributes:
        row: of the image in the set.
        texts: the reports, in the order of `KINDS`.
        sentences: of each, distinct and in their order.
    """

    row: int
    texts: tuple[str, str, str] = field(repr=False)
    sentences: tuple[tuple[str, ...], ...] = field(repr=False)

    @property
    def digest(self) -> str:
        """Names the three texts, so that results of two versions of a file are never paired."""
        return hashlib.sha256("\0".join(self.texts).encode()).hexdigest()


def read_triplets(
    path: Path, data: PreparedSet, split: str, views: Views = "frontal"
) -> tuple[list[Triplet], dict[str, str | int]]:
    """Triplets of the images of ``split``, and of those held out of training, of a file.

    Args:
        path: ``.json`` as CXR-Align's, or a table.
        data: the prepared set.
        split: whose images count.
        views: which of them are judged; of a study's images the first.

    Returns:
        The triplets in the order of the set's rows, and ``source``: the file, its hash, and what
        of its ``rows`` was left aside and why.

    Raises:
        UserError: the file cannot be read, lacks a column or a key, names something twice, or is
            that of other data.
        Skipped: none of its triplets can be judged.
    """
    table = _published(path) if path.suffix.lower() == ".json" else read_table(path, KINDS)
    keyed = KeyedTable.of(path, table, data)
    inside = keyed.listed(range(len(keyed.ids)))
    splits = data.images["split"].tolist()
    ours = [row for row in inside if splits[row] in (split, HELD_OUT)]
    frontal = judged(data, ours, views)
    first: dict[str, int] = {}
    for row in frontal:
        first.setdefault(keyed.ids[row], row)
    triplets = []
    without = unchanged = 0
    for name, row in first.items():
        cells = table.iloc[keyed.place[name]]
        texts = (str(cells[KINDS[0]]), str(cells[KINDS[1]]), str(cells[KINDS[2]]))
        cut = tuple(tuple(dict.fromkeys(s for _, s in report_sentences(text))) for text in texts)
        if not all(cut):
            without += 1
        elif cut[0] in cut[1:]:
            unchanged += 1
        else:
            triplets.append(Triplet(row, texts, cut))
    source = keyed.source("triplets") | {
        "images_of_other_splits": len(inside) - len(ours),
        OTHER_VIEWS: len(ours) - len(frontal),
        "further_images_of_a_study": len(frontal) - len(first),
        "without_sentence": without,
        "unchanged": unchanged,
    }
    if not triplets:
        raise Skipped(
            f"{path.name} gives no triplet of the split '{split}': of its {source['rows']} rows "
            f"{source['rows_not_in_set']} name nothing in the set; of the images "
            f"{source['images_of_other_splits']} are of other splits, {source[OTHER_VIEWS]} of "
            f"other views, {without} have a report without a sentence, {unchanged} one that "
            "equals the original."
        )
    return triplets, source


def _published(path: Path) -> pd.DataFrame:
    """CXR-Align's JSON as a table; its rows are numbered from 1."""
    content = read_json(path, _REMEDY)
    rows: list[dict[str, str]] = []
    for number, group in enumerate(content.values(), start=1):
        if not isinstance(group, Mapping):
            raise UserError(f"{path}: group {number} is no object of image ids; {_REMEDY}.")
        for name, case in group.items():
            rows.append({"image_id": str(name).strip(), **_case(path, len(rows) + 1, case)})
    if not rows:
        raise UserError(f"{path}: holds no triplet; {_REMEDY}.")
    table = pd.DataFrame(rows, dtype=object)
    table.index = pd.RangeIndex(1, len(table) + 1)
    return table


def _case(path: Path, number: int, case: Any) -> dict[str, str]:
    texts = {}
    for kind, key in _PUBLISHED.items():
        text = case.get(key) if isinstance(case, Mapping) else None
        if not isinstance(text, str):
            raise UserError(f"{path}, entry {number}: has no text '{key}'; {_REMEDY}.")
        texts[kind] = text
    return texts
