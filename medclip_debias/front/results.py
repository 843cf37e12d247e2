"""``results.json`` of one run or of several as a table."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import METRICS, Metric, value_at
from medclip_debias.evaluation.schema import read_results

COLUMNS = (
    *("run", "protocol", "metric", "class", "value", "low", "high"),
    *("unit", "lower_is_better", "title"),
)


def results(runs: Path | str | Iterable[Path | str]) -> pd.DataFrame:
    """Metrics of evaluations, one a row.

    Args:
        runs: folder that ``evaluate`` wrote into (or its ``results.json``), or several.

    Returns:
        ``run`` (as given), ``protocol``, ``metric``, ``class`` (None for the whole), ``value``,
        ``low`` and ``high`` (95% interval over patients; NaN without), ``unit`` (``share``,
        ``ratio``, ``rank``, ``error``), ``lower_is_better``, ``title``. ``attrs["notes"]`` holds
        what an evaluation says beside its metrics, by run, and ``attrs["skipped"]`` the protocols
        that were not measured, with the reason: read them.

    Raises:
        UserError: there is no such folder, no whole ``results.json``, or a run is given twice.
    """
    several = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    names = [str(run) for run in several]
    if len(set(names)) < len(names):
        raise UserError("a run is given twice; give each once.")
    read = {name: _read(Path(name)) for name in names}
    rows = [(name, *row) for name, content in read.items() for row in _rows(content)]
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    table = table.astype(dict.fromkeys(("value", "low", "high"), "float64"))
    table.attrs["notes"] = {name: list(r.get("notes") or ()) for name, r in read.items()}
    table.attrs["skipped"] = {name: dict(r.get("skipped") or {}) for name, r in read.items()}
    return table


def _read(place: Path) -> dict[str, Any]:
    if not place.exists():
        raise UserError(f"{place}: there is no such folder; give the --out of 'evaluate'.")
    return read_results(place / "results.json" if place.is_dir() else place)


def _rows(content: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for metric in METRICS:
        value = value_at(content, metric.key)
        if value is not None:
            yield _row(metric, None, value, value_at(content, metric.interval_key))
        if metric.per_class:
            for name, of_class in (value_at(content, f"{metric.protocol}.classes") or {}).items():
                value = of_class.get(metric.per_class)
                if value is not None:
                    bounds = (of_class.get("interval") or {}).get(metric.per_class)
                    yield _row(metric, name, value, bounds)


def _row(metric: Metric, name: str | None, value: float, bounds: Any) -> tuple[Any, ...]:
    called = metric.name if name is None else metric.per_class
    low, high = bounds or (None, None)
    about = metric.unit, metric.lower_is_better, metric.title
    return metric.protocol, called, name, value, low, high, *about
