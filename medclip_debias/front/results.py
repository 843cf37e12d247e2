"""``results.json`` of one run or of several as a table."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd

from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import METRICS
from medclip_debias.evaluation.table import Results, read_results
from medclip_debias.files import is_there

COLUMNS = (
    *("run", "protocol", "metric", "class", "group", "value", "low", "high", "n"),
    *("unit", "lower_is_better", "title"),
)


def results(runs: Path | str | Iterable[Path | str], *, groups: bool = False) -> pd.DataFrame:
    """Metrics of evaluations, one a row.

    Args:
        runs: folder that ``evaluate`` wrote into (or its ``results.json``), or several.
        groups: include groups: subsets such as small boxes, other ways to count, chance.

    Returns:
        ``run`` (as given), ``protocol``, ``metric``, ``class`` and ``group`` (None for the whole),
        ``value``, ``low`` and ``high`` (95% interval over patients; NaN without), ``n`` (number
        of items), as in `medclip_debias.evaluation.table`; ``unit`` (``share``, ``ratio``,
        ``rank``, ``error``), ``lower_is_better``, ``title``. Read ``attrs["notes"]``, the
        evaluation's remarks by run, and ``attrs["skipped"]``, the protocols that were not measured
        with the reason.

    Raises:
        UserError: a folder does not exist or has no complete ``results.json``, or a run is given
            twice.
    """
    several = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    names = [str(run) for run in several]
    if len(set(names)) < len(names):
        raise UserError("a run is given twice; give each once.")
    read: dict[str, Results] = {}
    for name in names:
        if not is_there(name):
            raise UserError(f"{name}: there is no such folder; give the --out of 'evaluate'.")
        read[name] = read_results(Path(name, "results.json") if Path(name).is_dir() else Path(name))
    tables = [content.table().assign(run=name) for name, content in read.items()]
    table = pd.concat(tables, ignore_index=True)
    catalogue = {(m.protocol, name): m for m in METRICS for name in (m.name, m.per_class) if name}
    places = list(zip(table["protocol"], table["metric"], strict=True))
    shown = np.array([place in catalogue for place in places], dtype=bool)
    table = table[shown if groups else shown & table["group"].isna()].reset_index(drop=True)
    metrics = [catalogue[key] for key in zip(table["protocol"], table["metric"], strict=True)]
    for column in ("unit", "lower_is_better", "title"):
        table[column] = [getattr(metric, column) for metric in metrics]
    table = table[list(COLUMNS)]
    table.attrs["notes"] = {name: list(r.get("notes") or ()) for name, r in read.items()}
    table.attrs["skipped"] = {name: dict(r.get("skipped") or {}) for name, r in read.items()}
    return table
