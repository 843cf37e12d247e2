"""Whether a prepared set still is what was prepared: a sample at the start of a run, or all of it.

``meta.json`` names the content by one hash over all of it, which takes long to compute anew. So it
also holds a hash of each table's file, and the manifest one of each row of pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from medclip_debias.data.layout import HASHES, MANIFEST, short_hash
from medclip_debias.data.store import PreparedSet, read_table
from medclip_debias.errors import UserError
from medclip_debias.files import file_hash

SAMPLE = 64
"""Rows of ``images.bin`` that `check_sample` reads."""
REMEDY = "restore what was prepared, or run 'prepare' again"

Progress = Callable[[int, int], None]


def check_sample(prepared: PreparedSet) -> None:
    """Compare all tables, and some rows of ``images.bin``, with what was prepared.

    The first and the last row, and others that are chosen anew each time: where a share p of the
    rows was changed, one start sees it with probability 1 - (1 - p)^62 or more.
    """
    for part in prepared.parts:
        count = len(part)
        chosen = np.random.default_rng().permutation(count)[: SAMPLE - 2]
        rows = sorted({0, count - 1, *chosen.tolist()}) if count else []
        for problem in _changes(part, rows):
            raise UserError(f"{problem}; {REMEDY}.")


def changes(prepared: PreparedSet, progress: Progress | None = None) -> list[str]:
    """Compare the whole set with what was prepared.

    Returns:
        A sentence, without its full stop, for each file that was changed; none for a whole set.
    """
    parts = prepared.parts
    return [problem for part in parts for problem in _changes(part, range(len(part)), progress)]


def _changes(
    prepared: PreparedSet, rows: Sequence[int], progress: Progress | None = None
) -> Iterator[str]:
    """What was changed of the tables, and of these rows of pixels."""
    hashes = _row_hashes(prepared).tolist()
    yield from _changed_tables(prepared)
    wrong = []
    for count, row in enumerate(rows, start=1):
        if short_hash(_bytes(prepared, row)) != hashes[row]:
            wrong.append(row)
        if progress and (count % 64 == 0 or count == len(rows)):
            progress(count, len(rows))
    if wrong:
        yield (
            f"{prepared.folder / 'images.bin'}: was changed under an unchanged meta.json;"
            f" {len(wrong)} of {len(rows)} rows looked at are not what was prepared, the first is"
            f" row {wrong[0]}"
        )


def _bytes(prepared: PreparedSet, row: int) -> bytes:
    return prepared.pixels[row].tobytes()


def _row_hashes(prepared: PreparedSet) -> pd.Series[str]:
    """The manifest's hash of each row of pixels."""
    path = prepared.folder / MANIFEST
    table = read_table(path, REMEDY, ["row", "pixel_hash"])
    table = table[table["row"] >= 0]  # reports alone have a row of the manifest, and none of pixels
    if not np.array_equal(table["row"].to_numpy(), np.arange(len(prepared))):
        raise UserError(f"{path}: does not list the {len(prepared)} images of the set; {REMEDY}.")
    return table["pixel_hash"]


def _changed_tables(prepared: PreparedSet) -> Iterator[str]:
    known = prepared.meta.get(HASHES)
    if not isinstance(known, dict):
        yield f"{prepared.folder / 'meta.json'}: has no hashes of the set's tables"
        return
    for name, expected in known.items():
        if file_hash(prepared.folder / name) != expected:
            yield f"{prepared.folder / name}: was changed under an unchanged meta.json"
