"""What a study is: an experiment with a name, and a YAML file of its grid beside it.

The file holds ``title``, ``source``, ``about``, ``settings`` (all that the grid depends on) and
``quick``, what a run of a few minutes sets otherwise. The class says how a cell is measured and
which tables the rows make; the sentences are written by hand, on the page in docs/studies.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from medclip_debias.config import Settings
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.evaluation.statistics import paired_seeds
from medclip_debias.experiments.differences import mean_sd, with_interval
from medclip_debias.experiments.experiment import Cell, Experiment, Row, Summary
from medclip_debias.registry import Registry
from medclip_debias.reporting.tables import Table
from medclip_debias.settings_files import load_yaml, merge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STUDIES: Registry[type[Study]] = Registry("study", "studies")
FREE = ("dials", "language")
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
        given = self.usual if settings is None else settings
        _check(given, self.usual, self.name)
        super().__init__(StudySettings(**given), inputs)

    @abstractmethod
    def tables(self, rows: Sequence[Row]) -> list[Table]:
        """The tables of the page, from the rows alone."""

    @abstractmethod
    def figure(self, rows: Sequence[Row]) -> Figure:
        """The plot of the page."""

    def summary(self, rows: Sequence[Row]) -> Summary:
        """The tables, and in a sentence each what is starred in them."""
        found = self.tables(rows)
        return Summary([*_starred(found)] or ["No table has a star."], found)

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
    if name not in known:
        hint = did_you_mean(name, list(known))
        raise UserError(f"there is no study '{name}'{hint}; known: {', '.join(known)}.")
    return known[name]


def _check(given: Mapping[str, Any], usual: Mapping[str, Any], where: str, path: str = "") -> None:
    """Raise a `UserError` for a setting that the study does not have, or of another type."""
    for key, value in given.items():
        if key not in usual:
            raise UserError(
                f"{where}: there is no setting '{path}{key}'{did_you_mean(key, list(usual))}."
            )
        wanted = usual[key]
        if isinstance(wanted, Mapping) and isinstance(value, Mapping):
            if key not in FREE:
                _check(value, wanted, where, f"{path}{key}.")
            continue
        types = (int, float) if isinstance(wanted, float) else type(wanted)
        if wanted is not None and not (isinstance(value, types) and type(value) is not bool):
            raise UserError(
                f"{where}: setting '{path}{key}' is {json.dumps(value)}, and must be like "
                f"{json.dumps(wanted)}."
            )


def _starred(tables: Sequence[Table]) -> list[str]:
    """A sentence for each row that has a difference beyond chance."""
    said = []
    for table in tables:
        for row in table.rows:
            pairs = zip(table.head[1:], row[1:], strict=True)
            cells = [f"{name} {cell[:-2]}" for name, cell in pairs if cell.endswith(" *")]
            if cells:
                said.append(f"{table.title}; {row[0]}: {', '.join(cells)}.")
    return said


# ------------------------------------------------------------------- what tables are made of


def where(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The rows that have these values."""
    return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]


def by_seed(rows: Sequence[Row], name: str) -> dict[int, float]:
    """One number by seed; the mean where a seed has several rows."""
    seeds = sorted({row["seed"] for row in rows})
    return {seed: float(np.mean([r[name] for r in where(rows, seed=seed)])) for seed in seeds}


def spread(rows: Sequence[Row], name: str, digits: int = 3) -> str:
    """Mean and standard deviation over the rows; empty where they lack the number."""
    values = [row[name] for row in rows if name in row]
    return mean_sd(values, digits) if values else ""


def gap(one: Mapping[int, float], other: Mapping[int, float], digits: int = 3) -> str:
    """``one`` minus ``other`` in pairs of seeds, with its 95% t interval; empty for one seed."""
    found = paired_seeds(one, other)
    return "" if found is None else with_interval(found[0], found[1], digits)
