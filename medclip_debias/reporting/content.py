"""Numbers, intervals and names as a report's words, and its main tables: no HTML here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from medclip_debias.evaluation.catalogue import (
    CHANCE,
    METRICS,
    PAPER_BASE,
    PAPER_BEST,
    PAPER_COLUMNS,
    PAPER_TABLE_1,
    PROTOCOL_TITLES,
    Metric,
)
from medclip_debias.evaluation.table import Results
from medclip_debias.settings_files import load_yaml

NOTHING = "\N{EN DASH}"
FEW_PATIENTS = 100
Rows = list[list[str]]


@cache
def texts() -> dict[str, Any]:
    """The words of tables and curves, ``sections.yaml``."""
    return load_yaml(Path(__file__).with_name("sections.yaml"))


def number(value: Any, digits: int = 3) -> str:
    """A number with ``digits`` decimals; a dash for none."""
    if value is None:
        return NOTHING
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{float(value):.{digits}f}"


def interval(value: Sequence[float] | None, digits: int = 3) -> str:
    """A 95% interval; a dash for none."""
    return " to ".join(f"{float(end):.{digits}f}" for end in value) if value else NOTHING


def estimate(value: Any, bounds: Sequence[float] | None, digits: int = 3) -> str:
    """A number, with its 95% interval in brackets where it has one."""
    shown = number(value, digits)
    return f"{shown} ({interval(bounds, digits)})" if bounds else shown


def duration(seconds: Any) -> str:
    """Seconds as people say them.

    >>> duration(75), duration(3.21)
    ('1 min 15 s', '3.2 s')
    """
    if float(seconds) < 60:
        return f"{float(seconds):.1f} s"
    minutes, rest = divmod(round(float(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def words(value: Any) -> str:
    """A name of settings or files as words."""
    return str(value).replace("_", " ")


def setting_words(value: Any) -> str:
    """Settings as words: the kind of a thing, then its own settings in brackets.

    >>> setting_words({"kind": "debiased", "eta": {"kind": "constant", "value": 0.05}})
    'debiased (eta: constant (value 0.05))'
    """
    if isinstance(value, Mapping):
        listed = ", ".join(
            f"{words(key)}{':' * isinstance(each, Mapping)} {setting_words(each)}"
            for key, each in value.items()
            if key != "kind"
        )
        if "kind" not in value:
            return listed
        return f"{value['kind']} ({listed})" if listed else str(value["kind"])
    if isinstance(value, list | tuple):
        return "; ".join(map(setting_words, value)) or "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def at(content: Any, *keys: str) -> Any:
    """What stands below keys of nested mappings; None where one is missing."""
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def few_patients(counts: Iterable[Any]) -> str:
    """A sentence on intervals from fewer than `FEW_PATIENTS` patients; empty where none are."""
    few = sorted({n for n in counts if isinstance(n, int) and n < FEW_PATIENTS})
    if not few:
        return ""
    shown = f"{few[0]}" if len(few) == 1 else f"{few[0]} to {few[-1]}"
    return (
        f"Fewer than {FEW_PATIENTS} patients ({shown}): take these intervals as rough; in "
        "simulation those of 95% held the truth 90 to 97 times in 100 with 20 to 80 patients "
        "(docs/evaluation.md)."
    )


def patients_of(results: Results) -> list[Any]:
    """Numbers of patients behind the protocols of one evaluation."""
    return [each.get("patients") for each in (results.get("details") or {}).values()]


def tiles(results: Results) -> list[dict[str, str]]:
    """The paper's metrics, as far as the results hold them."""
    return [
        {
            "title": metric.title,
            "value": number(row["value"], metric.digits),
            "interval": interval(bounds, metric.digits) if bounds else "",
            "floors": floor_words(results, metric),
            "better": "lower is better" if metric.lower_is_better else "higher is better",
        }
        for metric in METRICS
        if metric.paper and (row := results.row(metric.protocol, metric.name))
        for bounds in [results.interval(metric.protocol, metric.name)]
    ]


def floor_words(results: Results, metric: Metric) -> str:
    """What is had without skill: by chance, and by the name of each other floor."""
    return "; ".join(
        f"{name} " * (name != CHANCE) + number(value, metric.digits)
        for name, value in results.floors(metric).items()
    )


def metric_rows(results: Results) -> list[tuple[str, bool, list[dict[str, str]]]]:
    """Protocol, whether the paper has any of its metrics, and a row for each metric."""
    base, best = paper_cells(PAPER_BASE), paper_cells(PAPER_BEST)
    rows: dict[str, list[dict[str, str]]] = {}
    measured = [m for m in METRICS if results.value(m.protocol, m.name) is not None]
    for metric in measured:
        place, digits = (metric.protocol, metric.name), metric.digits
        row = {
            "title": metric.title,
            "definition": metric.definition,
            "value": number(results.value(*place), digits),
            "interval": interval(results.interval(*place), digits),
            "floors": floor_words(results, metric) or NOTHING,
            "base": base.get(metric.paper, NOTHING),
            "best": best.get(metric.paper, NOTHING),
        }
        rows.setdefault(metric.protocol, []).append(row)
    in_paper = {metric.protocol for metric in measured if metric.paper}
    return [(PROTOCOL_TITLES[name], name in in_paper, group) for name, group in rows.items()]


def paper_cells(method: str) -> dict[Any, str]:
    """A row of the paper's Table 1 by column, with the decimals that it was printed with."""
    values = zip(PAPER_COLUMNS, PAPER_TABLE_1[method], strict=True)
    return {column: f"{v:.0f}" if column == "MedR" else f"{v:.2f}" for column, v in values}
