"""The metrics of ``results.json`` as one table: a row for each metric, class and group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from medclip_debias.evaluation.catalogue import GROUPINGS, METRICS, Metric, value_at

FILE = "metrics.parquet"
COLUMNS = ("protocol", "metric", "class", "group", "value", "low", "high", "n")
_COUNTED = ("images", "phrases", "sentences", "studies", "masks", "progressions", "queries")
"""Keys of what a part of the results was measured on, the first that is there."""


def tidy(results: Mapping[str, Any]) -> pd.DataFrame:
    """The metrics of an evaluation, one a row.

    Args:
        results: content of ``results.json``.

    Returns:
        ``protocol``; ``metric``, its name in the catalogue (of one class as ``results.json`` calls
        it there); ``class`` and ``group`` (as ``areas: small``), None for the whole; ``value``;
        ``low`` and ``high``, 95% interval over patients, NaN without; ``n``, images, phrases or
        sentences that it rests on, missing where the results do not say.
    """
    table = pd.DataFrame(_rows(results), columns=list(COLUMNS))
    numbers = dict.fromkeys(("value", "low", "high"), "float64")
    return table.astype({**numbers, "n": "Int64", "class": "object", "group": "object"})


def _rows(results: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for metric in METRICS:
        part = results.get(metric.protocol)
        if part is None:
            continue
        value = value_at(part, metric.place)
        holder = value_at(part, metric.path.rpartition(".")[0]) if metric.path else part
        if value is not None:
            yield _row(metric.protocol, metric.name, None, None, value, holder or part)
        for name, of_class in (part.get("classes") or {}).items():
            value = of_class.get(metric.per_class) if metric.per_class else None
            if value is not None:
                yield _row(metric.protocol, metric.per_class, name, None, value, of_class)
        yield from _of_groups(metric, part)


def _of_groups(metric: Metric, part: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    for division in GROUPINGS[1:]:
        for name, group in (part.get(division) or {}).items():
            if group.get(metric.name) is not None:
                named = f"{division}: {name}"
                yield _row(metric.protocol, metric.name, None, named, group[metric.name], group)


def _row(
    protocol: str,
    metric: str,
    of_class: str | None,
    group: str | None,
    value: float,
    part: Mapping[str, Any],
) -> tuple[Any, ...]:
    low, high = (part.get("interval") or {}).get(metric) or (None, None)
    if of_class is not None and "positive" in part and "negative" in part:
        n = part["positive"] + part["negative"]
    else:
        n = next((part[key] for key in _COUNTED if isinstance(part.get(key), int)), None)
    return protocol, metric, of_class, group, value, low, high, n
