"""What a study is: a grid of cells, how one cell is measured, and what the figures say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from medclip_debias.config import Settings
from medclip_debias.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = Mapping[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """One table of a page: rows of cells, all text."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Summary:
    """What a study found.

    Attributes:
        findings: plain sentences, made from the figures; also where they contradict the paper.
        tables: for the page.
        figures: numbers for ``results.json``, by name.
    """

    findings: list[str]
    tables: list[Table] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


class Study(ABC):
    """Base of every study; a subclass is found by its ``name``.

    A cell is a mapping of plain values that holds everything its measurement depends on (a seed
    too), so that equal cells have equal results, and a cell that was measured is never measured
    again.

    Class attributes:
        name: as on the command line.
        title: of the page.
        source: paper and section.
        version: raised when the measurement changes, so that old results are not taken.
        settings_class: its settings; ``quick()`` gives those of a run of a few minutes.
        about: what is done, for the page (Markdown).
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    version: ClassVar[int] = 1
    settings_class: ClassVar[type[Settings]]
    about: ClassVar[str]
    register: ClassVar[dict[str, type[Study]]] = {}

    settings: Any

    def __init__(self, settings: Any = None) -> None:
        self.settings = settings or self.settings_class()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            cls.register[cls.name] = cls

    @classmethod
    @abstractmethod
    def quick(cls) -> Settings:
        """Settings of a run of at most three minutes on two cores."""

    @abstractmethod
    def cells(self) -> list[dict[str, Any]]:
        """The grid, in the order of measurement."""

    @abstractmethod
    def seconds(self, cell: Cell) -> float:
        """About how long ``cell`` takes on one core; shown before a run starts."""

    @abstractmethod
    def measure(self, cell: Cell) -> Row:
        """Measure one cell: a mapping of plain values. Depends on ``cell`` alone."""

    @abstractmethod
    def summary(self, rows: Sequence[Row]) -> Summary:
        """Say what the rows (cell and measurement joined) show."""

    @abstractmethod
    def figure(self, rows: Sequence[Row]) -> Figure:
        """Draw the rows; readable in grey and for the colour-blind."""


def studies() -> dict[str, type[Study]]:
    """Every study by name, in the order of the list of studies."""
    import importlib

    folder = Path(__file__).parent
    for path in sorted(folder.glob("*.py")):
        if path.stem not in ("__init__", "study", "runner", "page", "drawing"):
            importlib.import_module(f"medclip_debias.studies.{path.stem}")
    return dict(sorted(Study.register.items()))


def find_study(name: str) -> type[Study]:
    """The study called ``name``.

    Raises:
        UserError: there is none.
    """
    known = studies()
    if name not in known:
        hint = did_you_mean(name, list(known))
        raise UserError(f"there is no study '{name}'{hint}; known: {', '.join(known)}.")
    return known[name]
