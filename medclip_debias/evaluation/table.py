"""The table of results, and the file that holds it: ``results.json``.

A result is one row: protocol, metric, class, group, value, low, high, n. The rows stand under
``metrics``; beside them ``details`` holds, by protocol, what is no number of a metric (where labels
come from, thresholds, reasons), and the rest of the file what they were measured on and with.
docs/results.md says the same in words.

A row without class and group is over everything. A ``group`` is a part of what was judged
(``category: Edema``, ``area: small``), another way to count (``lenient``, ``strict, box to
sentence``, ``preset afloc``), or what is had without looking at the image (``chance``, ``other
images' boxes``, ``place prior``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from medclip_debias.errors import UserError
from medclip_debias.evaluation.catalogue import CHANCE, METRICS, PROTOCOLS, Metric, address
from medclip_debias.files import read_json, write_text

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 3
"""Version of ``results.json``."""
TABLE = "metrics.parquet"
"""The rows alone, for whoever reads tables."""
EXAMPLES = "retrieval"
"""The folder with a few queries of retrieval and their answers."""
COLUMNS = ("protocol", "metric", "class", "group", "value", "low", "high", "n")
FLOORS = (CHANCE, "other images' boxes", "place prior")
"""Groups of what is had without looking at the image."""
_AGAIN = "run 'evaluate' again"


class Row(NamedTuple):
    """One number of a protocol, finite, with its 95% interval over patients.

    The metric is in the catalogue, or a variant that only its section shows; ``n`` are the images,
    phrases, queries ... that it rests on; ``of_class`` and ``group`` are None for the whole.
    """

    metric: str
    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None
    of_class: str | None = None
    group: str | None = None


def rows(
    values: Mapping[str, Any],
    *,
    n: int | None = None,
    of_class: str | None = None,
    group: str | None = None,
) -> list[Row]:
    """A row without an interval for each finite float of ``values``."""
    return [
        Row(name, float(value), None, None, n, of_class, group)
        for name, value in values.items()
        if isinstance(value, float) and math.isfinite(value)
    ]


def without_rows(part: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """What of ``part`` makes no row: neither floats nor ``names``."""
    return {k: v for k, v in part.items() if not isinstance(v, float) and k not in names}


class Results(dict[str, Any]):
    """The content of ``results.json``; its table is asked with `value`, `interval` and `table`."""

    @cached_property
    def _places(self) -> dict[tuple[Any, ...], Mapping[str, Any]]:
        return {tuple(row[key] for key in COLUMNS[:4]): row for row in self.get("metrics") or ()}

    def row(
        self, protocol: str, metric: str, of_class: str | None = None, group: str | None = None
    ) -> Mapping[str, Any] | None:
        """A row of the table, by its columns; None where there is none."""
        return self._places.get((protocol, metric, of_class, group))

    def value(
        self, protocol: str, metric: str, of_class: str | None = None, group: str | None = None
    ) -> float | None:
        """The number of a row; None where there is none."""
        row = self.row(protocol, metric, of_class, group)
        return None if row is None else row["value"]

    def interval(
        self, protocol: str, metric: str, of_class: str | None = None, group: str | None = None
    ) -> tuple[float, float] | None:
        """The 95% interval of a row; None without one."""
        row = self.row(protocol, metric, of_class, group)
        return None if row is None or row["low"] is None else (row["low"], row["high"])

    def of(self, key: str) -> Mapping[str, Any] | None:
        """The row that a key names (`medclip_debias.evaluation.catalogue.address`)."""
        protocol, metric, group = address(key)
        return self.row(protocol, metric, None, group)

    def details(self, protocol: str) -> Mapping[str, Any]:
        """What a protocol says beside its numbers; empty where it was not measured."""
        details: Mapping[str, Any] = (self.get("details") or {}).get(protocol) or {}
        return details

    @property
    def protocols(self) -> set[str]:
        """Those that were measured."""
        return {place[0] for place in self._places}

    def by_class(self, protocol: str, metric: str) -> dict[str, float]:
        """A metric of each class that has it, in their order."""
        return {
            place[2]: row["value"]
            for place, row in self._places.items()
            if place[2] and (place[0], place[1], place[3]) == (protocol, metric, None)
        }

    def preset_lines(self) -> Iterator[tuple[str, str, str]]:
        """The metrics of other presets: preset, protocol, and its numbers in one line."""
        for name, protocol in product(self.get("presets") or {}, PROTOCOLS):
            line = ", ".join(
                f"{place[1]} {row['value']:.3f}"
                for place, row in self._places.items()
                if (place[0], *place[2:]) == (protocol, None, f"preset {name}")
            )
            if line:
                yield name, protocol, line

    def groups(self, protocol: str, metric: str, kind: str) -> dict[str, str]:
        """Groups of a kind (``category``) that have a metric: their names, then the group."""
        start = f"{kind}: "
        return {
            p[3].removeprefix(start): p[3]
            for p in self._places
            if p[:3] == (protocol, metric, None) and p[3] and p[3].startswith(start)
        }

    def floors(self, metric: Metric) -> dict[str, float]:
        """What stands beside a metric: what is had without looking at the image, by its name."""
        known = {group: self.value(metric.protocol, metric.name, None, group) for group in FLOORS}
        if isinstance(metric.chance, float):
            known[CHANCE] = metric.chance
        return {group: value for group, value in known.items() if value is not None}

    @property
    def resamples(self) -> int | None:
        """Resamples behind its intervals; None where it does not say."""
        drawn = (self.get("options") or {}).get("bootstrap")
        number = drawn.get("resamples") if isinstance(drawn, Mapping) else None
        return number if isinstance(number, int) else None

    def table(self) -> pd.DataFrame:
        """The rows as a table of `COLUMNS`: NaN and None for what a row does not have."""
        import pandas as pd

        table = pd.DataFrame(self.get("metrics") or [], columns=list(COLUMNS))
        numbers = dict.fromkeys(("value", "low", "high"), "float64")
        words = dict.fromkeys(("protocol", "metric", "class", "group"), "object")
        return table.astype({**numbers, **words, "n": "Int64"})

    def write(self, path: Path) -> None:
        """Write ``results.json``, a line a row, as a whole."""
        lines = [json.dumps(row, allow_nan=False) for row in self.get("metrics") or ()]
        others = {key: value for key, value in self.items() if key != "metrics"}
        head = json.dumps(others, indent=2, allow_nan=False).removesuffix("\n}")
        table = ",\n    ".join(lines)
        write_text(path, f'{head},\n  "metrics": [\n    {table}\n  ]\n}}\n')


def of_protocol(protocol: str, measured: Iterable[Row]) -> Iterator[dict[str, Any]]:
    """The rows of a protocol as ``results.json`` has them."""
    for row in measured:
        place = (protocol, row.metric, row.of_class, row.group)
        yield dict(zip(COLUMNS, (*place, row.value, row.low, row.high, row.n), strict=True))


# -------------------------------------------------------------------------------- reading


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)

    protocol: str
    metric: str
    of_class: str | None = Field(alias="class")
    group: str | None
    value: float
    low: float | None
    high: float | None
    n: int | None = Field(ge=0)


class _File(BaseModel):
    """What every results file has; keys that this version does not know are kept."""

    format: Literal[3]
    metrics: list[_Row]
    details: dict[str, dict[str, Any]] = {}
    split: str
    maps: dict[str, Any] | None = None
    presets: dict[str, dict[str, Any]] = {}
    skipped: dict[str, str] = {}
    notes: list[str] = []
    counts: dict[str, int] = {}
    data_hash: str
    model_hash: str | None = None
    code_hash: str | None = None
    seed: int
    prompts: dict[str, Any] = {}
    options: dict[str, Any] = {}
    archives: dict[str, Any] | None = None
    model: dict[str, Any] = {}
    data: dict[str, Any] = {}
    self_test: dict[str, Any] | None = None
    versions: dict[str, str] = {}
    timing: dict[str, float | None] = {}


def read_results(path: Path) -> Results:
    """Read and check ``results.json``."""
    return checked(read_json(path, "run 'medclip-debias evaluate' to write it"), str(path))


def checked(content: Any, where: str) -> Results:
    """The content of a results file, or one sentence that names the first wrong key."""
    if not isinstance(content, dict):
        raise UserError(f"{where}: is not a results file; {_AGAIN}.")
    if content.get("format") != FORMAT:
        raise UserError(
            f"{where}: results of format {content.get('format')!r}, but this version reads format "
            f"{FORMAT}; {_AGAIN}."
        )
    try:
        _File.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise UserError(f"{where}: is damaged at '{place}' ({message}); {_AGAIN}.") from None
    results = Results(content)
    if len(results._places) < len(content["metrics"]):
        raise UserError(f"{where}: lists a metric twice; {_AGAIN}.")
    for metric in METRICS:
        lacks = metric.required and results.value(metric.protocol, metric.name) is None
        if lacks and metric.protocol in results.protocols:
            raise UserError(f"{where}: has no '{metric.key}'; {_AGAIN}.")
    return results
