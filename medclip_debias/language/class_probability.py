"""What the objective must know of each sentence: its log probability, or its eta.

Scores carry the hash of the language model that gave them; a table of eta is read from a file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.files import check_guarded
from medclip_debias.language.masked_lm import language_model_hash
from medclip_debias.parquet import read_parquet

_LARGEST = 4 << 30


def log_probabilities(
    prepared: PreparedSet, texts: list[str], language_model: Path | None
) -> NDArray[np.float64]:
    """Stored log probability of each text, by the model ``language_model`` (None accepts any)."""
    expected = None if language_model is None else language_model_hash(language_model)
    scores = prepared.scores(expected)
    return np.array([scores[text] for text in texts], dtype=np.float64)


def eta_table(path: Path, texts: list[str]) -> NDArray[np.float64]:
    """eta of each text from a CSV or Parquet file with columns ``text`` and ``eta``."""
    check_guarded(path, "give a table with the columns 'text' and 'eta'", limit=_LARGEST)
    try:
        table = read_parquet(path) if path.suffix == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read as a table ({type(error).__name__}).") from error
    for column in ("text", "eta"):
        if column not in table:
            count = len(table.columns)
            raise UserError(
                f"{path}: none of its {count} columns is '{column}'; is its first line the header?"
            )
    eta = pd.to_numeric(table["eta"], errors="coerce").to_numpy(dtype=np.float64)
    wrong = np.flatnonzero(~((eta >= 0) & (eta < 1)))
    if len(wrong):
        raise UserError(
            f"{path}, row {wrong[0] + 2}: eta must be a number in [0, 1); "
            f"{len(wrong)} rows are not."
        )
    known = dict(zip(table["text"].astype(str), eta, strict=True))
    absent = sum(text not in known for text in texts)
    if absent:
        raise UserError(
            f"{path}: {absent} of {len(texts)} sentences of the training set have no row in it."
        )
    return np.array([known[text] for text in texts], dtype=np.float64)
