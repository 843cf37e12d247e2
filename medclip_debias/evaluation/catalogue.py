"""Every metric once: name, title, direction, digits, definition, unit; the entries are YAML.

Results, comparisons, reports, tables, the page docs/metrics.md, experiments and early
stopping read what stands in ``catalogue.yaml``. A new metric needs two places: the protocol that
computes it, and its entry there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from medclip_debias.settings_files import load_yaml

Unit = Literal["share", "ratio", "rank", "error"]
"""``share``: from 0 to 1. ``ratio``: of two quantities of one kind, without bound. ``rank``: place
in a list, from 1. ``error``: a difference of shares, from 0 to 1, 0 best."""

_BOUNDS: dict[Unit, tuple[float, float]] = {
    "share": (0.0, 1.0),
    "error": (0.0, 1.0),
    "rank": (1.0, math.inf),
    "ratio": (-math.inf, math.inf),
}

PaperColumn = Literal["AUC", "ACC", "CNR", "mIoU", "Recall", "MedR"]
"""A column of Table 1 of Wang et al. 2023."""


@dataclass(frozen=True)
class Metric:
    """One metric of an evaluation.

    Attributes:
        protocol: that gives it; ``validation`` for what a training run measures on the way.
        name: in the table of results, and of its statistic.
        title: what tables and plots call it.
        definition: one sentence.
        unit: what its numbers are.
        lower_is_better: True for ranks and errors.
        digits: decimals shown.
        alias: what task cards, grids and command lines call it behind the protocol, where that is
            not ``name``.
        per_class: name of the same metric of one class, where ``name`` is the mean over classes
            (the sum, where the definition says so).
        item: column of the protocol's item table that holds it for one item, if there is one.
        chance: what a model without any skill gets: a number, or ``measured`` where it depends on
            the data and stands in the table, in the group ``chance``.
        paper: column of the paper's Table 1 that it is.
        terminal: whether ``evaluate`` prints it.
        required: whether every results file that has the protocol has it.
        compared: whether `compare` computes it again from the item tables.
        lowest: value that it cannot fall below, where that is not its unit's.
        seeds_needed: seeds without which no sentence and no star of an experiment speaks of it,
            because it varies from seed to seed more than from method to method.
    """

    protocol: str
    name: str
    title: str
    definition: str
    unit: Unit
    lower_is_better: bool = False
    digits: int = 3
    alias: str = ""
    per_class: str = ""
    item: str = ""
    chance: Literal["measured"] | float | None = None
    paper: PaperColumn | None = None
    terminal: bool = False
    required: bool = False
    compared: bool = True
    lowest: float | None = None
    seeds_needed: int = 0

    @property
    def bounds(self) -> tuple[float, float]:
        """Lowest and highest value that it can have, of one item as of the mean.

        >>> Metric("a", "recall", "", "", "share").bounds
        (0.0, 1.0)
        """
        low, high = _BOUNDS[self.unit]
        return low if self.lowest is None else self.lowest, high

    @property
    def key(self) -> str:
        """What task cards, grids and command lines call it.

        >>> Metric("a", "recall", "", "", "share", alias="report.recall").key
        'a.report.recall'
        """
        return f"{self.protocol}.{self.alias or self.name}"


_CONTENT = load_yaml(Path(__file__).with_suffix(".yaml"))
_EVERY = [
    Metric(protocol, name, **fields)
    for protocol, entry in _CONTENT.items()
    for name, fields in entry["metrics"].items()
]

PROTOCOL_TITLES: dict[str, str] = {name: entry["title"] for name, entry in _CONTENT.items()}
"""The protocols as headings."""

VALIDATION = tuple(metric for metric in _EVERY if metric.protocol == "validation")
"""What a training run measures on the way, and stops early by."""

METRICS = tuple(metric for metric in _EVERY if metric.protocol != "validation")
"""What `evaluate` measures, in the order of every table."""

COMPARED = tuple(metric for metric in METRICS if metric.compared)
"""What `compare` tests."""

PROTOCOLS = tuple(name for name in PROTOCOL_TITLES if name != "validation")
"""The protocols, in the order of their results."""

CHANCE = "chance"
"""Group of what a model without any skill gets."""

PAPER_COLUMNS: tuple[PaperColumn, ...] = ("AUC", "ACC", "CNR", "mIoU", "Recall", "MedR")

PAPER_TABLE_1: dict[str, tuple[float, ...]] = {
    "BioViL": (0.78, 0.62, 1.14, 0.17, 0.25, 148),
    "LSE+NL, no correction": (0.79, 0.65, 1.40, 0.19, 0.29, 115),
    "remove by CheX5 labels": (0.86, 0.71, 1.37, 0.19, 0.29, 113),
    "resample by text": (0.82, 0.71, 1.37, 0.19, 0.30, 111),
    "remove by text": (0.84, 0.72, 1.39, 0.19, 0.30, 112),
    "reweight by text": (0.84, 0.69, 1.40, 0.19, 0.29, 113),
    "debiased, eta 0.05": (0.80, 0.72, 1.46, 0.19, 0.30, 104),
    "debiased, eta 0.1": (0.85, 0.72, 1.45, 0.19, 0.29, 111),
    "debiased, language model": (0.86, 0.72, 1.49, 0.20, 0.30, 104),
}
"""Table 1 of Wang et al. 2023 (MIMIC-CXR, MS-CXR, ResNet-18), rows of `PAPER_COLUMNS`."""
PAPER_BASE, PAPER_BEST = "LSE+NL, no correction", "debiased, language model"


_BY_KEY = {metric.key: metric for metric in METRICS}
_BY_NAME = {(metric.protocol, metric.name): metric for metric in _EVERY}


def find(protocol: str, name: str) -> Metric:
    """The metric ``name`` of ``protocol``."""
    return _BY_NAME[protocol, name]


def address(key: str) -> tuple[str, str, str | None]:
    """Protocol, metric and group of what a key names, as task cards and command lines write it.

    >>> address("study_retrieval.report.recall"), address("presets.afloc.grounding.miou")
    (('study_retrieval', 'recall', None), ('grounding', 'miou', 'preset afloc'))
    """
    if key in _BY_KEY:
        return _BY_KEY[key].protocol, _BY_KEY[key].name, None
    protocol, _, name = key.partition(".")
    if protocol == "presets" and name.count(".") > 1:
        preset, protocol, name = name.split(".", 2)
        return protocol, name, f"preset {preset}"
    return protocol, name, None


def of_protocol(protocol: str) -> tuple[Metric, ...]:
    """The metrics that ``protocol`` gives, in the order of tables."""
    return tuple(metric for metric in METRICS if metric.protocol == protocol)
