"""CheXpert labels: one row per study, 1 present, 0 absent, -1 uncertain, blank unmentioned."""

from __future__ import annotations

from pathlib import Path

from medclip_debias.data.sources.tables import read_table
from medclip_debias.errors import UserError

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

_RENAMED = {"Airspace Opacity": "Lung Opacity"}
_VALUES = {"1": 1.0, "0": 0.0, "-1": -1.0, "": None, "nan": None}

Labels = dict[str, float | None]


def label_name(column: str) -> str | None:
    """Return the CheXpert label that a column holds, or ``None``.

    >>> label_name("airspace opacity"), label_name("split")
    ('Lung Opacity', None)
    """
    key = " ".join(column.replace("_", " ").split()).lower()
    known = {name.lower(): name for name in CHEXPERT_LABELS}
    known |= {old.lower(): new for old, new in _RENAMED.items()}
    return known.get(key)


def label_value(text: str, where: str) -> float | None:
    """Return the value of one cell; ``where`` names file, row and column for the message."""
    key = text.strip().lower()
    key = key.removesuffix(".0") if key.endswith(".0") else key
    if key not in _VALUES:
        raise UserError(
            f"{where}: a label must be 1 (present), 0 (absent), -1 (uncertain) or blank."
        )
    return _VALUES[key]


def read_labels(path: Path) -> dict[str, Labels]:
    """Read a CheXpert table (CSV, also gzipped) as labels by ``study_id``.

    Raises:
        UserError: no ``study_id`` or no label column, a value that is no label, a study twice.
    """
    table = read_table(path, required=("study_id",))
    columns = {name: label for name in table.columns if (label := label_name(name))}
    if not columns:
        raise UserError(
            f"{path}: no column is a CheXpert label such as 'Cardiomegaly';"
            f" it has: {', '.join(table.columns)}."
        )
    result: dict[str, Labels] = {}
    for index, study in enumerate(table["study_id"]):
        if study in result:
            raise UserError(f"{path}, row {index + 2}: its study was listed before; keep one row.")
        result[study] = {}
    for name, label in columns.items():
        seen: dict[str, float | None] = {}
        for index, (study, text) in enumerate(zip(table["study_id"], table[name], strict=True)):
            if text not in seen:
                seen[text] = label_value(text, f"{path}, row {index + 2}, column '{name}'")
            result[study][label] = seen[text]
    return result
