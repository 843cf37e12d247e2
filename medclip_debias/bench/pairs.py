"""Metrics of a result on resampled patients, so that two models can be compared in pairs.

They come from the item tables. A shared copy of results may lack the labels and boxes that an
archive's terms do not let others have; then its metrics on the resampled patients, which
``bench pack`` wrote beside the items (`RESAMPLED`), take the tables' place: with equal patients,
seed and number of resamples every model was resampled alike, wherever that happened.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from medclip_debias.bench.results import KNOWN, Result, can_be_recomputed
from medclip_debias.errors import UserError
from medclip_debias.evaluation.item_metrics import ITEMS
from medclip_debias.evaluation.item_tables import FOLDER
from medclip_debias.evaluation.schema import read_results
from medclip_debias.evaluation.statistics import Replicated, replicates
from medclip_debias.parquet import read_parquet

RESAMPLED = "resampled"
"""Ending of a table's name: ``items/zero_shot.resampled.parquet``."""
RESAMPLES, SEED = 1000, 0
_POINT, _RESAMPLE, _WITHOUT = 0, 1, 2


def item_file(folder: Path, protocol: str) -> Path:
    """The item table of a protocol."""
    return folder / FOLDER / f"{ITEMS[protocol].file}.parquet"


def resampled_file(folder: Path, protocol: str) -> Path:
    """Its metrics on resampled patients, where they were written."""
    return folder / FOLDER / f"{ITEMS[protocol].file}.{RESAMPLED}.parquet"


def read_items(path: Path) -> pd.DataFrame:
    """An item table, sorted by item, so that equal sets of items are equal tables.

    Raises:
        UserError: it is missing, damaged, or no item table.
    """
    try:
        table = read_parquet(path)
    except FileNotFoundError:
        raise UserError(f"{path}: is missing; run 'bench' again.") from None
    except (OSError, ValueError) as error:
        kind = type(error).__name__
        raise UserError(f"{path}: cannot be read ({kind}); run 'bench' again.") from error
    for column in ("item", "patient"):
        if column not in table.columns:
            raise UserError(f"{path}: has no column '{column}'; run 'bench' again.")
    if not len(table) or table["item"].duplicated().any():
        raise UserError(f"{path}: lists an item twice, or none; run 'bench' again.")
    return table.sort_values("item", kind="stable", ignore_index=True)


def has_truth(table: pd.DataFrame, protocol: str) -> bool:
    """Whether what no model decides, as labels, stands in a table, or was never needed."""
    needed = ITEMS[protocol].truth
    return all(any(str(name).startswith(part) for name in table.columns) for part in needed)


def resample(result: Result, protocol: str) -> tuple[pd.DataFrame, dict[str, Replicated]]:
    """A result's items of one protocol, and its metrics on resampled patients by their names.

    Raises:
        UserError: a file is missing or damaged.
    """
    table = read_items(item_file(result.folder, protocol))
    if not has_truth(table, protocol):
        path = resampled_file(result.folder, protocol)
        return table, read_resampled(path, table["patient"].nunique()) if path.is_file() else {}
    results = read_results(result.folder / "results.json")
    statistics = ITEMS[protocol].statistics(results.get(protocol) or {}, table)
    patients = [str(name) for name in table["patient"]]
    found = replicates({"": statistics}, patients, resamples=RESAMPLES, seed=SEED)[""]
    return table, found


def write_resampled(path: Path, found: dict[str, Replicated]) -> None:
    """Write metrics on resampled patients: the metrics, the resamples, and without each patient.

    Args:
        path: of the table.
        found: metrics by their names.
    """
    first = next(iter(found.values()))
    rows = [_POINT] + [_RESAMPLE] * first.replicates.size + [_WITHOUT] * first.without.size
    columns: dict[str, object] = {"part": np.array(rows, dtype=np.int8)}
    for name, one in found.items():
        # The metric itself stays exact; seven digits of the resamples do.
        rest = np.concatenate([one.replicates, one.without]).astype(np.float32)
        columns[name] = np.concatenate([[one.value], rest.astype(np.float64)])
    pd.DataFrame(columns).to_parquet(
        path,
        index=False,
        compression="zstd",
        use_dictionary=False,
        use_byte_stream_split=list(found),
    )


def read_resampled(path: Path, patients: int) -> dict[str, Replicated]:
    """What `write_resampled` wrote.

    Args:
        path: of the table.
        patients: how many the items beside it have.

    Raises:
        UserError: it is damaged, or was resampled another number of times.
    """
    try:
        table = read_parquet(path)
        part = table["part"].to_numpy()
        found = {
            str(name): Replicated(
                float(table[name].to_numpy(dtype=np.float64)[part == _POINT][0]),
                table[name].to_numpy(dtype=np.float64)[part == _RESAMPLE],
                table[name].to_numpy(dtype=np.float64)[part == _WITHOUT],
                patients,
            )
            for name in table.columns
            if name != "part"
        }
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        kind = type(error).__name__
        raise UserError(f"{path}: cannot be read ({kind}); run 'bench pack' again.") from error
    if (part == _RESAMPLE).sum() not in (0, RESAMPLES):
        raise UserError(
            f"{path}: holds {(part == _RESAMPLE).sum()} resamples, not {RESAMPLES}; run 'bench "
            "pack' again by this version."
        )
    return found


def by_protocol(metrics: tuple[str, ...]) -> dict[str, list[str]]:
    """Keys of the metrics that can be computed again, by the protocol whose items have them."""
    found: dict[str, list[str]] = {}
    for key in metrics:
        if can_be_recomputed(key):
            found.setdefault(KNOWN[key].protocol, []).append(key)
    return found
