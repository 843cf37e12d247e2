"""Reading one Parquet file, with limits on what a small file may unfold to."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from medclip_debias.errors import UserError
from medclip_debias.files import open_guarded

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 50_000_000
"""Rows of a table. One column of as many equal numbers is a file of less than 1 MB."""

LARGE = 8 * 2**20
"""Bytes from which threads are worth their start."""
_REMEDY = "make or copy the table again"


def read_parquet(
    path: Path,
    columns: Sequence[str] | None = None,
    *,
    rows: int = MAX_ROWS,
    folder: Path | None = None,
) -> pd.DataFrame:
    """One table as pandas reads it, in half the time; ``rows`` and ``folder`` limit it.

    Raises:
        UserError: it is no regular file, a link out of ``folder``, or has too many rows.
        OSError: the file is missing or cannot be read.
        ValueError: it is no Parquet file, is damaged, or lacks a column.
    """
    import pyarrow.parquet as pq

    if not path.exists():  # the caller knows what to do about it
        raise FileNotFoundError(path)
    with open_guarded(path, _REMEDY, folder=folder) as stream, pq.ParquetFile(stream) as file:
        threads = os.fstat(stream.fileno()).st_size >= LARGE
        if file.metadata.num_rows > rows:
            raise UserError(
                f"{path}: has {file.metadata.num_rows:,} rows, more than the {rows:,} that are "
                f"read; {_REMEDY}."
            )
        names = set(file.schema_arrow.names)
        missing = [name for name in columns or () if name not in names]
        if missing:  # pyarrow would leave it out and say nothing
            raise ValueError(f"there is no column '{missing[0]}'")
        table = file.read(columns=columns, use_threads=threads, use_pandas_metadata=True)
    return table.to_pandas(use_threads=threads)
