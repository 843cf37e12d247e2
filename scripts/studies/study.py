"""What a study is: an experiment with a name, and a YAML file of its grid beside it.

The file holds ``title``, ``source``, ``about``, ``settings`` (all that the grid depends on) and
``quick``, what a run of a few minutes sets otherwise. The class says how a cell is measured and
which tables the rows make; the sentences are written by hand, on the page in docs/studies.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from itertools import cycle
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from matplotlib.figure import Figure

from medclip_debias.config import Settings
from medclip_debias.errors import UserError, did_you_mean, one_of
from medclip_debias.evaluation.statistics import paired_seeds
from medclip_debias.experiments.differences import mean_sd, with_interval
from medclip_debias.experiments.experiment import Cell, Experiment, Row, Summary
from medclip_debias.palette import STYLES
from medclip_debias.registry import Registry
from medclip_debias.reporting.plots import panels
from medclip_debias.reporting.tables import Table
from medclip_debias.settings_files import load_yaml, merge

STUDIES: Registry[type[Study]] = Registry("study", "studies")
FREE = ("arms", "dials", "language")
"""Settings that are settings of something else, which checks them."""


class StudySettings(Settings, extra="allow"):
    """The settings of a study; which there are is said by its YAML file."""


class Study(Experiment):
    """Base of every study; a subclass is found by its ``name``, as on the command line."""

    kind: ClassVar[str] = "study"
    plot: ClassVar[str] = "figure.png"
    reader: ClassVar[str] = "`--config`"
    settings_class: ClassVar[type[Settings]] = StudySettings
    usual: ClassVar[dict[str, Any]]
    small: ClassVar[dict[str, Any]]
    seconds_a_cell: ClassVar[float] = 5.0
    minor: ClassVar[tuple[str, ...]] = ()
    """Columns that the page in docs/studies leaves out of a table in which they have no star."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            grid = load_yaml(Path(__file__).with_name(f"{cls.name}.yaml"))
            cls.title, cls.source, cls.about = (grid[key] for key in ("title", "source", "about"))
            cls.usual, cls.small = grid["settings"], merge(grid["settings"], grid["quick"])
            STUDIES.add(cls.name, cls)

    def __init__(
        self, settings: Mapping[str, Any] | None = None, inputs: Path | None = None
    ) -> None:
        super().__init__(StudySettings(**(self.usual if settings is None else settings)), inputs)

    @abstractmethod
    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """The tables of the page, from the rows alone."""

    @abstractmethod
    def figure(self, rows: Sequence[Row]) -> Figure:
        """The plot of the page."""

    def summary(self, rows: Sequence[Row]) -> Summary:
        """The tables, and in a sentence each what is starred in them."""
        found, said = self.tables(rows), []
        for one, row in ((table, row) for table in found for row in table.rows):
            pairs = zip(one.head[1:], row[1:], strict=True)
            cells = [f"{name} {cell[:-2]}" for name, cell in pairs if cell.endswith(" *")]
            said += [f"{one.title}; {row[0]}: {', '.join(cells)}."] if cells else []
        return Summary(said or ["No table has a star."], found)

    def seconds(self, cell: Cell) -> float:  # noqa: ARG002
        return self.seconds_a_cell

    def command(self) -> str:
        """The verb ``study``."""
        usual = self.settings.model_dump(mode="json") == StudySettings(**self.usual).model_dump()
        config = "" if usual else " --config settings.yaml"
        return f"medclip-debias study {self.name}{config} --out runs/studies/{self.name}"


def find_study(name: str) -> type[Study]:
    """The study called ``name``."""
    known = STUDIES.all()
    return known[one_of(name, list(known), "study")]


def check(given: Mapping[str, Any], usual: Mapping[str, Any], path: str) -> None:
    """Raise a `UserError` for a setting that the study does not have, or of another type."""
    for key, value in given.items():
        if key not in usual:
            raise UserError(f"there is no setting '{path}{key}'{did_you_mean(key, list(usual))}.")
        wanted = usual[key]
        if isinstance(wanted, Mapping) and isinstance(value, Mapping):
            if key not in FREE:
                check(value, wanted, f"{path}{key}.")
            continue
        types = (int, float) if isinstance(wanted, float) else type(wanted)
        if not isinstance(value, types) or isinstance(value, bool):
            raise UserError(
                f"setting '{path}{key}' is {json.dumps(value)}, and must be like "
                f"{json.dumps(wanted)}."
            )


# ---------------------------------------------------------- what tables and plots are made of


def where(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def split(rows: Sequence[Row], *names: str) -> dict[Any, list[Row]]:
    """The rows by their value of one setting, or by the tuple of several, in order."""
    key = itemgetter(*names)
    return {v: [row for row in rows if key(row) == v] for v in sorted({key(row) for row in rows})}


def average(rows: Sequence[Row], name: str) -> float:
    """Mean of one number over the rows."""
    return float(np.mean([row[name] for row in rows]))


def by_seed(rows: Sequence[Row], name: str) -> dict[int, float]:
    """One number by seed; the mean where a seed has several rows."""
    return {seed: average(own, name) for seed, own in split(rows, "seed").items()}


def spread(rows: Sequence[Row], name: str, digits: int = 3) -> str:
    """Mean and standard deviation over the rows; empty where they lack the number."""
    values = [row[name] for row in rows if name in row]
    return mean_sd(values, digits) if values else ""


def means(
    title: str, rows: Sequence[Row], by: Mapping[str, str], values: Mapping[str, str]
) -> Table:
    """Mean and standard deviation of ``values`` for each value of the settings ``by``.

    Both are names in the rows, with their headings.
    """
    body = []
    for key, own in split(rows, *by).items():
        names = key if isinstance(key, tuple) else (key,)
        said = [name if isinstance(name, str) else f"{name:g}" for name in names]
        body.append([*said, *(spread(own, value) for value in values)])
    return Table(title, [*by.values(), *values.values()], body)


def gap(one: Mapping[int, float], other: Mapping[int, float], digits: int = 3) -> str:
    """``one`` minus ``other`` in pairs of seeds, with its 95% t interval; empty for one seed."""
    found = paired_seeds(one, other)
    return "" if found is None else with_interval(found[0], found[1], digits)


def lines(
    shown: Mapping[str, tuple[Sequence[Row], str]], x: str, series: str, *, log: bool = False
) -> Figure:
    """Panels with a line for each ``series`` over ``x``: mean over the rows, with one sd.

    ``shown`` has the title of a panel, its rows and the name of the number.
    """
    figure, axes = panels(len(shown), list(shown))
    for one, (rows, name) in zip(axes, shown.values(), strict=True):
        labels = dict.fromkeys(row[series] for row in rows)
        for label, (colour, marker, dashes) in zip(labels, cycle(STYLES), strict=False):
            own = split([row for row in rows if row[series] == label], x)
            means = [average(some, name) for some in own.values()]
            style = {"color": colour, "marker": marker, "linestyle": dashes}
            one.plot(list(own), means, **style, linewidth=1.4, markersize=4, label=str(label))
            for place, mean, some in zip(own, means, own.values(), strict=True):
                if len(some) > 1:
                    sd = np.std([row[name] for row in some], ddof=1)
                    one.errorbar([place], [mean], [sd], color=colour, lw=0.7, capsize=2)
        if log:
            places = sorted({row[x] for row in rows})
            one.set_xscale("log")
            one.set_xticks(places, [f"{place:g}" for place in places])
            one.minorticks_off()
        one.set_xlabel(x, fontsize=8)
    axes[0].legend(fontsize=7, frameon=False)
    return figure
