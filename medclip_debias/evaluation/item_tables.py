"""Per-item results: what paired statistics between two runs need, without any id of the source.

Each protocol writes one Parquet table under ``items/``. ``item`` and ``patient`` are digests, equal
for two models on one set and different on another, so that runs can be paired. They are keyed with
the set's secret (`medclip_debias.data.secret`), so only who has the set can tell whom they name;
the benchmark's are keyed with the list of images itself, so that two machines' pair.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype

from medclip_debias.errors import UserError
from medclip_debias.evaluation.bootstrap import Floats, Statistics
from medclip_debias.evaluation.protocol import Protocol, registered
from medclip_debias.files import atomic_folder
from medclip_debias.parquet import MAX_ROWS, read_parquet

FOLDER = "items"
ITEMS: dict[str, type[Protocol]] = {kind.name: kind for kind in registered()}
"""The protocols by name: what the item table of each is called, and its way back to the metrics."""


def item_keys(secret: bytes, data_hash: str, ids: Iterable[str]) -> list[str]:
    """First 16 hex digits of HMAC-SHA256 of ``data_hash:id`` under ``secret``, for each id."""
    names = (f"{data_hash}:{name}".encode() for name in ids)
    return [hmac.new(secret, name, hashlib.sha256).hexdigest()[:16] for name in names]


def item_file(folder: Path, protocol: str) -> Path:
    """The item table of a protocol below a folder of results."""
    return folder / FOLDER / f"{ITEMS[protocol].file}.parquet"


@dataclass(frozen=True)
class ItemNames:
    """What items and patients are called: digests of ``scope:id`` under ``secret``."""

    scope: str
    secret: bytes = field(repr=False)


def write_items(out: Path, tables: Mapping[str, pd.DataFrame], names: ItemNames) -> None:
    """Write ``items/NAME.parquet`` for each table, the folder as a whole."""
    with atomic_folder(out / FOLDER) as temporary:
        for name, table in tables.items():
            keys = {
                column: item_keys(names.secret, names.scope, table[of])
                for column, of in (("item", "id"), ("patient", "patient"))
            }
            others = table.drop(columns=["id", "patient"]).reset_index(drop=True)
            anonymous = pd.concat([pd.DataFrame(keys), others], axis=1)
            anonymous.to_parquet(temporary / f"{name}.parquet", index=False)


def read_items(
    path: Path, again: str, *, rows: int = MAX_ROWS, folder: Path | None = None
) -> pd.DataFrame:
    """An item table, sorted by item, so that equal sets of items are equal tables.

    Args:
        path: of the file.
        again: what to do about a table that cannot be used.
        rows: of the largest table that is read.
        folder: out of which no link may lead.
    """
    try:
        table = read_parquet(path, rows=rows, folder=folder)
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; {again}.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: cannot be read ({type(error).__name__}); {again}.") from error
    for column in ("item", "patient"):
        if column not in table.columns:
            raise UserError(f"{path}: has no column '{column}'; {again}.")
    if not len(table) or table["item"].duplicated().any():
        raise UserError(f"{path}: lists an item twice, or lists none; {again}.")
    return table.sort_values("item", kind="stable", ignore_index=True)


def differing_truth(protocol: str, one: pd.DataFrame, other: pd.DataFrame) -> list[str]:
    """The columns that no model decides, and in which two tables differ on the items of both.

    The patient is one of them. A column that one table lacks differs; numbers do not by their last
    bits. Both are sorted by item, as `read_items` gives them.
    """
    if not one["item"].equals(other["item"]):
        both = set(one["item"]) & set(other["item"])
        one, other = (t[t["item"].isin(both)].reset_index(drop=True) for t in (one, other))
    named = dict.fromkeys(map(str, [*one.columns, *other.columns]))
    names = ["patient", *(name for name in named if name.startswith(ITEMS[protocol].truth))]
    return [name for name in names if not _equal(one.get(name), other.get(name))]


def _equal(one: pd.Series | None, other: pd.Series | None) -> bool:
    if one is None or other is None:
        return False
    if is_numeric_dtype(one) and is_numeric_dtype(other):
        numbers = one.to_numpy(np.float64), other.to_numpy(np.float64)
        return np.allclose(*numbers, equal_nan=True)
    return one.equals(other)


def statistics_of(
    protocol: str, details: Mapping[str, Any], table: pd.DataFrame, path: Path
) -> Statistics:
    """`Protocol.statistics` of a table that was read from ``path``, which may lack a column."""

    statistics = cache(lambda: ITEMS[protocol].statistics(details, table))

    def computed(weights: Floats) -> Mapping[str, Floats]:
        try:
            return statistics()(weights)
        except (AttributeError, KeyError, ValueError, TypeError, IndexError) as error:
            raise UserError(
                f"{path}: its metrics cannot be computed ({type(error).__name__}: {error})."
            ) from error

    return computed
