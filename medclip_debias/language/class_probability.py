"""What the objective must know of each sentence: its log probability, or its eta.

Scores carry the hash of the language model that gave them; a table of eta is read from a file.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.sources.tables import distinct_rows, read_table, refuse_rows
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError
from medclip_debias.language.masked_lm import language_model_hash


def log_probabilities(
    prepared: PreparedSet, texts: list[str], language_model: Path | None
) -> NDArray[np.float64]:
    """Stored log probability of each text, by the model ``language_model`` (None accepts any)."""
    expected = None if language_model is None else language_model_hash(language_model)
    scores = prepared.scores(expected)
    return np.array([scores[text] for text in texts], dtype=np.float64)


def eta_table(path: Path, texts: list[str]) -> NDArray[np.float64]:
    """eta of each text from a CSV or Parquet file with columns ``text`` and ``eta``."""
    table = read_table(path, ["text", "eta"], [])
    table["eta"] = pd.to_numeric(table["eta"], errors="coerce")
    in_range = table["eta"].between(0, 1, inclusive="left")
    refuse_rows(path, table, ~in_range, "eta must be a number in [0, 1).")
    problem = "says another eta of the sentence than row {}; keep one."
    rows = distinct_rows(path, table, "text", problem)
    known = dict(zip(rows["text"], rows["eta"], strict=True))
    absent = sum(text not in known for text in texts)
    if absent:
        raise UserError(
            f"{path}: {absent} of {len(texts)} sentences of the training set have no row in it."
        )
    return np.array([known[text] for text in texts], dtype=np.float64)
