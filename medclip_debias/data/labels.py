"""CheXpert and NegBio labels: one row per study, and what to make of -1 and blank.

1 present, 0 absent, -1 uncertain, blank unmentioned. Prepared sets keep these values; a
`LabelPolicy` turns them into yes and no where that is needed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from medclip_debias.config import Settings
from medclip_debias.data.sources.ids import STUDY, is_blank, read_ids
from medclip_debias.data.sources.tables import columns_there, distinct_rows, read_table
from medclip_debias.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

CHEXPERT_LABELS = (
    "Atelectasis",
    "Cardiomegaly",
    "Consolidation",
    "Edema",
    "Enlarged Cardiomediastinum",
    "Fracture",
    "Lung Lesion",
    "Lung Opacity",
    "No Finding",
    "Pleural Effusion",
    "Pleural Other",
    "Pneumonia",
    "Pneumothorax",
    "Support Devices",
)
"""The 14 labels, in the order of the CheXpert labeller's table."""

CHEX5 = ("Cardiomegaly", "Edema", "Pleural Effusion", "Pneumonia", "Pneumothorax")
"""The five of the zero-shot protocol."""

Labeller = Literal["chexpert", "negbio"]
"""The two automatic labellers that MIMIC-CXR-JPG comes with; same columns, same values."""

_RENAMED = {"Airspace Opacity": "Lung Opacity"}
VALUES = {"1": 1.0, "0": 0.0, "-1": -1.0}
"""Of the cells of a table of labels."""
_NO_LABELS = ("study_id", "subject_id", "dicom_id", "patient_id", "image_id", "split", "path")

Labels = dict[str, float | None]


class LabelPolicy(Settings):
    """What the labels -1 (uncertain) and blank (unmentioned) stand for.

    ``leave_out`` drops the image from that class and counts it. Tables labelled by people
    (MIMIC-CXR's test set, the phantom's) have few of either; CheXpert's automatic labels
    leave most classes blank, and ``as_negative`` is then the usual reading.
    """

    uncertain: Literal["leave_out", "as_negative", "as_positive"] = "leave_out"
    blank: Literal["leave_out", "as_negative", "as_positive"] = "leave_out"

    def apply(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Turn label values into 1, 0, or NaN for "left out".

        >>> LabelPolicy(uncertain="as_positive").apply(np.array([1, 0, -1, np.nan])).tolist()
        [1.0, 0.0, 1.0, nan]
        """
        meaning = {"leave_out": np.nan, "as_negative": 0.0, "as_positive": 1.0}
        result = np.full(len(values), np.nan)
        result[values == 1] = 1.0
        result[values == 0] = 0.0
        result[values == -1] = meaning[self.uncertain]
        result[np.isnan(values)] = meaning[self.blank]
        return result


def label_name(column: str) -> str | None:
    """Return the CheXpert label that a column holds, or ``None``.

    >>> label_name("airspace opacity"), label_name("split")
    ('Lung Opacity', None)
    """
    key = " ".join(column.replace("_", " ").split()).lower()
    known = {name.lower(): name for name in CHEXPERT_LABELS}
    known |= {old.lower(): new for old, new in _RENAMED.items()}
    return known.get(key)


def label_columns(
    path: Path, names: Iterable[str], classes: Collection[str] = CHEXPERT_LABELS
) -> dict[str, str]:
    """Return the columns of a table that hold labels of ``classes``, and the label of each."""
    columns: dict[str, str] = {}
    for name in names:
        label = name if name in classes else label_name(name)
        if label is None or label not in classes:
            continue
        other = next((n for n, known in columns.items() if known == label), None)
        if other is not None:
            raise UserError(
                f"{path}: columns '{other}' and '{name}' both hold '{label}'; keep one."
            )
        columns[name] = label
    return columns


def label_values(path: Path, table: pd.DataFrame, column: str) -> list[float | None]:
    """Return the values of a column's cells; the first that is no label is refused."""
    values: dict[str, float | None] = {}
    for row, text in table[column].drop_duplicates().items():
        key = text.strip().removesuffix(".0")
        if not is_blank(text) and key not in VALUES:
            raise UserError(
                f"{path}, row {row}, column '{column}': a label must be 1 (present), 0 (absent),"
                " -1 (uncertain) or blank."
            )
        values[text] = VALUES.get(key)
    return [values[text] for text in table[column]]


def unread_columns(path: Path, names: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return a sentence on the columns that are neither ``known`` nor a label, if any."""
    skipped = [n for n in names if n.lower() not in known and label_name(n) is None]
    if not skipped:
        return []
    named = (f"'{name}'{did_you_mean(name, CHEXPERT_LABELS)}" for name in skipped)
    return [f"{path}: no label and not read: column {', '.join(named)}."]


def read_label_table(path: Path) -> tuple[dict[str, Labels], list[str]]:
    """Read a CheXpert table by ``study_id``, which may be written ``s1`` too.

    Returns:
        Labels by study id, and sentences on what was read otherwise than it is written, or not.
    """
    table = read_table(path, required=("study_id",))
    columns = label_columns(path, table.columns)
    if not columns:
        raise UserError(
            f"{path}: no column is a CheXpert label such as 'Cardiomegaly';"
            f" {columns_there(list(table.columns))}."
        )
    ids, said = read_ids(path, table, "study_id", STUDY)
    problem = "its study is already in row {}; keep one row."
    numbered = table[[]].assign(study=ids, row=table.index)
    distinct_rows(path, numbered, "study", problem, ["row"])
    result: dict[str, Labels] = {study: {} for study in ids}
    for name, label in columns.items():
        for study, value in zip(ids, label_values(path, table, name), strict=True):
            result[study][label] = value
    return result, [*said, *unread_columns(path, table.columns, _NO_LABELS)]
