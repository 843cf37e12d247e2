"""Rows of results.json, written by hand."""

from __future__ import annotations

from typing import Any

LEAST = {"format": 3, "split": "test", "data_hash": "d" * 64, "model_hash": "m", "seed": 0}
"""What every results file has, beside its rows."""


def row(
    protocol: str,
    metric: str,
    value: float,
    interval: tuple[float, float] | None = None,
    of_class: str | None = None,
    group: str | None = None,
    n: int | None = None,
) -> dict[str, Any]:
    """A row as the file has it."""
    low, high = interval or (None, None)
    place = {"protocol": protocol, "metric": metric, "class": of_class, "group": group}
    return place | {"value": value, "low": low, "high": high, "n": n}


def rows(protocol: str, values: dict[str, float], **more: Any) -> list[dict[str, Any]]:
    """Rows of several metrics that have the rest in common."""
    return [row(protocol, metric, value, **more) for metric, value in values.items()]
