"""From a run's files to the words and tables of its report: no HTML here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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

NOTHING = "\N{EN DASH}"
Rows = list[list[str]]


# ------------------------------------------------------------------------------ formatting


def number(value: Any, digits: int = 3) -> str:
    """A number with ``digits`` decimals; a dash for none."""
    if value is None:
        return NOTHING
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{float(value):.{digits}f}"


def interval(value: Sequence[float] | None, digits: int = 3) -> str:
    """A 95% interval; a dash for none."""
    if not value:
        return NOTHING
    return f"{number(float(value[0]), digits)} to {number(float(value[1]), digits)}"


FEW_PATIENTS = 100
PATIENTS_OF = (
    *("zero_shot", "grounding", "study_retrieval", "triplets", "segmentation", "progression"),
)


def few_patients(counts: Iterable[Any]) -> str:
    """A sentence on intervals from fewer than `FEW_PATIENTS` patients; empty where none are.

    Args:
        counts: patients behind the metrics; what is no number is passed over.
    """
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
    return [results.details(protocol).get("patients") for protocol in PATIENTS_OF]


def at(content: Any, *keys: str) -> Any:
    """What stands below keys of nested mappings; None where one is missing."""
    for key in keys:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def duration(seconds: Any) -> str:
    """Seconds as people say them.

    >>> duration(75), duration(3.21)
    ('1 min 15 s', '3.2 s')
    """
    if seconds is None:
        return NOTHING
    seconds = float(seconds)
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def flat(content: Any, prefix: str = "") -> Rows:
    """Nested mappings as rows of dotted key and value."""
    if isinstance(content, Mapping):
        return [row for key, item in content.items() for row in flat(item, f"{prefix}{key}.")]
    if isinstance(content, list):
        text = ", ".join(str(item) for item in content)
    else:
        text = f"{content:,}" if type(content) is int else str(content)
    return [[prefix.removesuffix("."), text]]


# -------------------------------------------------------------------------------- sections


def tiles(results: Results) -> list[dict[str, str]]:
    """The paper's metrics, as far as the results hold them."""
    return [
        {
            "title": metric.title,
            "value": number(row["value"], metric.digits),
            "interval": interval(results.interval(metric.protocol, metric.name), metric.digits),
            "better": "lower is better" if metric.lower_is_better else "higher is better",
        }
        for metric in METRICS
        if metric.paper and (row := results.row(metric.protocol, metric.name))
    ]


def metric_rows(results: Results) -> list[tuple[str, bool, list[dict[str, str]]]]:
    """Every metric with its interval, what chance gives, and the paper's values, by protocol.

    Returns:
        Title of the protocol, whether the paper has any of its metrics, and their rows.
    """
    groups: dict[str, tuple[list[dict[str, str]], list[bool]]] = {}
    for metric in METRICS:
        value = results.value(metric.protocol, metric.name)
        if value is None:
            continue
        digits = metric.digits
        beside = results.floors(metric)
        chance = beside.pop(CHANCE, None)
        others = "".join(f"; {name} {number(floor, digits)}" for name, floor in beside.items())
        rows, in_paper = groups.setdefault(metric.protocol, ([], []))
        in_paper.append(metric.paper is not None)
        rows.append(
            {
                "title": metric.title,
                "definition": metric.definition,
                "value": number(value, digits),
                "interval": interval(results.interval(metric.protocol, metric.name), digits),
                "chance": number(chance, digits) + others,
                "base": _paper(metric, PAPER_BASE),
                "best": _paper(metric, PAPER_BEST),
            }
        )
    return [(PROTOCOL_TITLES[n], any(known), rows) for n, (rows, known) in groups.items()]


def _paper(metric: Metric, method: str) -> str:
    if metric.paper is None:
        return NOTHING
    column = PAPER_COLUMNS.index(metric.paper)
    return paper_value(PAPER_TABLE_1[method], column)


def paper_value(row: Sequence[float], column: int) -> str:
    """One of the paper's values with the decimals that it was printed with."""
    return f"{row[column]:.0f}" if PAPER_COLUMNS[column] == "MedR" else f"{row[column]:.2f}"


def funnel_rows(results: Mapping[str, Any]) -> Rows:
    """The funnel: step, unit, kept, dropped."""
    return [
        [
            str(step.get("step", "")),
            str(step.get("unit", "")),
            number(step.get("kept")),
            number(step.get("dropped")),
        ]
        for step in at(results, "data", "funnel") or []
    ]


def timing_rows(results: Mapping[str, Any]) -> Rows:
    """How long each part took."""
    return [[name, duration(seconds)] for name, seconds in (results.get("timing") or {}).items()]


def provenance_rows(results: Mapping[str, Any]) -> tuple[Rows, Rows]:
    """What names the results, and all that somebody needs to repeat them."""
    heads = {
        "Data": ("data_hash",),
        "Model": ("model_hash",),
        "Code": ("code_hash",),
        "Self-test of the model": ("self_test", "status"),
        "Split": ("split",),
        "Seed of the bootstrap": ("seed",),
        "Prompts": ("prompts", "name"),
    }
    values = {title: at(results, *keys) for title, keys in heads.items()}
    first = [[title, str(value)] for title, value in values.items() if value is not None]
    versions = results.get("versions") or {}
    if versions:
        first.append(["Versions", ", ".join(f"{_words(k)} {v}" for k, v in versions.items())])
    keys = ("self_test", "options", "prompts")
    rest = [row for key in keys if key in results for row in flat(results[key], f"{key}.")]
    return first, [[_words(name.replace(".", ": ")), text] for name, text in rest]


def _words(key: str) -> str:
    return key.replace("_", " ")
