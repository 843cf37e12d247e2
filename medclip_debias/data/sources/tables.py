"""Reading tables that came from elsewhere: Parquet, and CSV.

A CSV may be gzipped, have a BOM and CRLF, and semicolons or tabs between its cells, as
spreadsheets of many countries write it.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Collection, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from medclip_debias.errors import UserError
from medclip_debias.files import open_guarded
from medclip_debias.parquet import read_parquet

if TYPE_CHECKING:
    import pandas as pd

csv.field_size_limit(1 << 24)  # the default, 128 KiB, is less than some exported reports

MAX_ROWS = 20_000_000
"""Of a table; the largest of an archive has some hundred thousand."""
_MOST_OF_A_LINE = 1 << 26


def read_table(
    path: Path, required: Collection[str] = (), optional: Collection[str] | None = None
) -> pd.DataFrame:
    """Read a table with every value as text, stripped; blank cells are ``""``.

    The index of the frame is what messages call a row: in a CSV the line of the file on which
    the row starts (blank lines and line breaks inside cells count, the header is line 1), in a
    Parquet table the row's number from 1.

    Args:
        path: ``.csv``, ``.csv.gz`` or ``.parquet``.
        required: columns that must be there.
        optional: those of the others that are kept, as blank cells where they are missing;
            ``None`` keeps all that there are.
    """
    columns = None if optional is None else [*required, *optional]
    frame = _read_parquet(path) if path.suffix.lower() == ".parquet" else _read_csv(path, columns)
    missing = next((name for name in required if name not in frame.columns), None)
    if missing is not None:
        there = frame.attrs.get("header", list(frame.columns))
        raise UserError(f"{path}: column '{missing}' is missing; {columns_there(there)}.")
    return frame if columns is None else frame.reindex(columns=columns, fill_value="")


def named_tuples(table: pd.DataFrame) -> Iterator[Any]:
    """Yield the rows; Arrow's strings would be slow to go through one by one."""
    return iter(table.astype(object).itertuples())


def origins(path: Path, table: pd.DataFrame) -> list[str]:
    """Return file and row of each row, for messages."""
    return [f"{path}, row {row}" for row in table.index]


def refuse_rows(path: Path, table: pd.DataFrame, bad: pd.Series[bool], problem: str) -> None:
    """Stop at the first bad row; ``problem`` ends the sentence."""
    if bad.any():
        raise UserError(f"{path}, row {table.index[bad][0]}: {problem}")


def distinct_rows(
    path: Path, table: pd.DataFrame, key: str, problem: str, columns: list[str] | None = None
) -> pd.DataFrame:
    """Return the rows that differ in ``columns``; stop where two of them have one ``key``.

    ``problem`` ends the sentence; ``{}`` in it is the first row of that key.
    """
    distinct = table.drop_duplicates(columns)
    clash = distinct[distinct.duplicated(key)]
    if len(clash):
        first = distinct.index[distinct[key] == clash[key].iloc[0]][0]
        raise UserError(f"{path}, row {clash.index[0]}: {problem.format(first)}")
    return distinct


def columns_there(names: Collection[str]) -> str:
    """Say which of a table's columns are known, and no name of any other.

    The first line of a table without header is a row: its cells are patients and reports.
    """
    known = [name for name in names if name.strip().lower() in _KNOWN]
    if known:
        return f"of its {len(names)} columns these are known: {', '.join(known)}"
    return f"none of its {len(names)} columns is known (is its first line the header?)"


_KNOWN = frozenset(
    (
        *("image", "image_id", "dicom_id", "study_id", "study", "subject_id", "patient_id", "path"),
        *("report", "text", "label_text", "view", "viewposition", "split", "class"),
        *("category_name", "x", "y", "w", "h", "image_width", "image_height", "rows", "columns"),
        *("no finding", "enlarged cardiomediastinum", "cardiomegaly", "lung opacity"),
        *("lung lesion", "edema", "consolidation", "pneumonia", "atelectasis", "pneumothorax"),
        *("fracture", "pleural effusion", "pleural other", "support devices", "airspace opacity"),
    )
)


def _read_csv(path: Path, columns: Collection[str] | None) -> pd.DataFrame:
    import pandas as pd

    rows = _csv_rows(path)
    header = [name.strip() for name in next(rows, (1, []))[1]]
    if not any(header):
        raise UserError(f"{path}: the table is empty; it needs a header row.")
    twice = next((name for name in header if name and header.count(name) > 1), None)
    if twice is not None:
        first, second = [n for n, name in enumerate(header, start=1) if name == twice][:2]
        named = f" ('{twice}')" if twice.lower() in _KNOWN else ""
        raise UserError(
            f"{path}: columns {first} and {second} have the same name{named}; keep one of them, and"
            " make sure that the first line is the header."
        )
    # Some tables end their header with commas, and not their rows.
    full = next(n for n in range(len(header), 0, -1) if header[n - 1])
    values: dict[int, list[str]] = {
        at: [] for at, name in enumerate(header) if columns is None or name in columns
    }
    lines: list[int] = []
    for line, row in rows:
        if len(row) == full:
            row += [""] * (len(header) - full)
        if len(row) != len(header):
            raise UserError(
                f"{path}, row {line}: has {len(row)} cells where the header has {len(header)};"
                " quote cells that hold commas or line breaks."
            )
        lines.append(line)
        for at, column in values.items():
            column.append(row[at].strip())
    frame = pd.DataFrame({header[at]: pd.Series(v, dtype=object) for at, v in values.items()})
    frame.index = pd.Index(lines if values else [], dtype="int64")
    frame.attrs["header"] = header
    return frame


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row that is not blank, and the line on which it starts."""
    line = 0
    try:
        with open_text(path) as file:
            lines = _lines(path, file)
            first = next(lines, "")
            reader = csv.reader(chain([first], lines), delimiter=delimiter(first), strict=True)
            for count, row in enumerate(reader, start=1):
                if count > MAX_ROWS:
                    raise UserError(f"{path}: has more than {MAX_ROWS:,} rows; split the table.")
                if any("\0" in cell for cell in row):
                    raise UserError(
                        f"{path}, row {line + 1}: holds a zero byte, which no text does; export the"
                        " table again."
                    )
                if row:  # an empty line is no row
                    yield line + 1, row
                line = reader.line_num
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}: the gzip file is truncated or damaged; copy it again.") from error
    except UnicodeDecodeError as error:
        problem = f"is not UTF-8 text after row {line}; save the table as UTF-8"
        raise UserError(f"{path}: {problem}.") from error
    except csv.Error as error:
        problem = "is not readable CSV; export the table again"
        raise UserError(f"{path}, row {line + 1}: {problem}.") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({type(error).__name__}).") from error


def delimiter(header: str) -> str:
    """Return what separates the cells of a table, by its first line.

    >>> delimiter("image;report"), delimiter("Image Index,Bbox [x;y]"), delimiter("image")
    (';', ',', ',')
    """
    return max(",;\t", key=header.count)


def open_text(path: Path) -> TextIO:
    """Open a table or list that came from elsewhere as text, unpacked; use it in a ``with``."""
    stream = open_guarded(path, "check the path")
    packed = path.suffix.lower() == ".gz"
    plain = cast(IO[bytes], gzip.GzipFile(fileobj=stream)) if packed else stream
    return io.TextIOWrapper(plain, encoding="utf-8-sig", newline="")


def _lines(path: Path, file: TextIO) -> Iterator[str]:
    """Yield the lines; one without end would fill the memory."""
    while line := file.readline(_MOST_OF_A_LINE):
        if len(line) == _MOST_OF_A_LINE:
            raise UserError(
                f"{path}: has a line of more than {_MOST_OF_A_LINE:,} characters; export the table"
                " again."
            )
        yield line


def _read_parquet(path: Path) -> pd.DataFrame:
    import numpy as np
    import pandas as pd

    def as_text(value: Any) -> str:
        """A cell as text; lists and the like, which a Parquet table can hold, are not blank."""
        if pd.api.types.is_scalar(value):
            return "" if pd.isna(value) else str(value).strip()
        return str(value.tolist() if isinstance(value, np.ndarray) else value)

    try:
        frame = read_parquet(path, rows=MAX_ROWS)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; check the path.") from None
    except (OSError, ValueError, NotImplementedError) as error:
        raise UserError(f"{path}: is not a readable Parquet table; export it again.") from error
    cells = {n: pd.Series(list(map(as_text, frame[n])), dtype=object) for n in frame.columns}
    table = pd.DataFrame(cells).rename(columns=lambda name: str(name).strip())
    table.index = pd.RangeIndex(1, len(frame) + 1)
    return table
