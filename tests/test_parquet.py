"""One Parquet file read as pandas reads it; what is missing or damaged is an error."""

from __future__ import annotations

import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from medclip_debias import parquet
from medclip_debias.errors import UserError
from medclip_debias.parquet import read_parquet


@pytest.fixture
def file(tmp_path):
    """A table of every kind of column that this project writes."""
    table = pd.DataFrame(
        {
            "study_id": ["s1", "s2", None],
            "row": np.array([3, 1, 2], np.int32),
            "score": [0.5, np.nan, -1.0],
            "present": [True, False, True],
            "split": pd.Categorical(["train", "test", "train"]),
            "findings": [[1, 2], [], None],
            "box": pd.array([1, None, 3], dtype="Int64"),
        },
        index=pd.Index([7, 8, 9], name="place"),
    )
    path = tmp_path / "table.parquet"
    table.to_parquet(path)
    return path


@pytest.mark.parametrize("columns", [None, ["row"], ["split", "study_id"]])
@pytest.mark.parametrize("large", [0, parquet.LARGE])
def test_a_table_is_what_pandas_reads(file, columns, large, monkeypatch):
    monkeypatch.setattr(parquet, "LARGE", large)  # with threads and without
    pd.testing.assert_frame_equal(
        read_parquet(file, columns), pd.read_parquet(file, columns=columns), check_exact=True
    )


def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "items.parquet")
    with pytest.raises(UserError, match="is a pipe, not a regular file"):
        read_parquet(tmp_path / "items.parquet")


def test_what_is_missing_or_damaged_is_an_error(file, tmp_path):
    with pytest.raises(ValueError, match="no column 'eta'"):
        read_parquet(file, ["row", "eta"])
    with pytest.raises(FileNotFoundError):
        read_parquet(tmp_path / "none.parquet")
    content = file.read_bytes()
    for left in (0, 3, 400):
        file.write_bytes(content[:left])
        with pytest.raises((OSError, ValueError)):
            read_parquet(file)


def test_rows_are_counted_before_they_are_read(tmp_path):
    """Of a column of one value, millions of rows are a few bytes."""
    path = tmp_path / "bomb.parquet"
    pq.write_table(pa.table({"row": pa.array([7] * 100_000)}), path)
    assert path.stat().st_size < 10_000
    with pytest.raises(UserError, match="has 100,000 rows, more than the 99,999 that are"):
        read_parquet(path, rows=99_999)
