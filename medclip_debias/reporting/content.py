"""Numbers, intervals and names as a report's words, its main tables, and its templates filled."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medclip_debias import __version__
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

if TYPE_CHECKING:
    from jinja2 import Environment

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
    numbers = " to ".join(str(n) for n in dict.fromkeys((few[0], few[-1])))
    return (
        f"Fewer than {FEW_PATIENTS} patients ({numbers}): take these intervals as rough; in "
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


class Contents:
    """Titles of a page's sections by their address within it, filled while it is rendered."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add(self, title: str) -> str:
        """Enter a section; return what its heading is to be called.

        >>> contents = Contents()
        >>> contents.add("Where the model looks"), contents.add("Where the model looks?")
        ('where-the-model-looks', 'where-the-model-looks-2')
        """
        name = address = re.sub(r"\W+", "-", title.lower()).strip("-") or "section"
        number = 1
        while address in self.entries:
            number += 1
            address = f"{name}-{number}"
        self.entries[address] = title
        return address


def render(template: str, **values: Any) -> str:
    """The page of ``templates/template``; values are escaped, and a missing one is an error."""
    values |= {"contents": Contents(), "version": __version__}
    return _templates().get_template(template).render(values)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("medclip_debias.reporting", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (at, duration, number, setting_words, words)
    templates.filters |= {each.__name__: each for each in filters}
    return templates
