"""What a study is: a grid of cells, how one cell is measured, and what the figures say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from medclip_debias.config import Settings, json_hash
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
        overview: tables that the index of all studies shows as well.
    """

    findings: list[str]
    tables: list[Table] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    overview: list[Table] = field(default_factory=list)


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
        inputs_version: raised when what cells share is made otherwise.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    source: ClassVar[str]
    version: ClassVar[int] = 1
    settings_class: ClassVar[type[Settings]]
    about: ClassVar[str]
    inputs_version: ClassVar[int] = 1
    register: ClassVar[dict[str, type[Study]]] = {}

    settings: Any

    def __init__(self, settings: Any = None, inputs: Path | None = None) -> None:
        """Take the study's settings, and the folder of what cells share.

        Args:
            settings: of `settings_class`; its defaults if None.
            inputs: folder in which what several cells read is kept; a cache, nothing more.
        """
        self.settings = settings or self.settings_class()
        self.inputs = inputs

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

    def shared(self, cell: Cell) -> Mapping[str, Any] | None:  # noqa: ARG002
        """What ``cell`` reads that other cells may read as well; None for nothing.

        It follows from the cell alone, and what `make_shared` makes follows from it alone.
        """
        return None

    def make_shared(self, wanted: Mapping[str, Any], folder: Path) -> None:
        """Make ``folder``, atomically, from what `shared` gave; nothing if it is there."""
        raise NotImplementedError

    def shared_seconds(self, wanted: Mapping[str, Any]) -> float:  # noqa: ARG002
        """About how long `make_shared` takes on one core; part of the predicted time."""
        return 0.0

    def shared_path(self, wanted: Mapping[str, Any]) -> Path:
        """Where that lies, made or not."""
        assert self.inputs is not None
        return self.inputs / json_hash([type(self).inputs_version, dict(wanted)])

    def shared_folder(self, cell: Cell) -> Path:
        """The folder of what ``cell`` shares with others; made if it is not there."""
        wanted = self.shared(cell)
        assert wanted is not None
        folder = self.shared_path(wanted)
        self.make_shared(wanted, folder)
        return folder

    def follow_up(self, rows: Sequence[Row]) -> list[dict[str, Any]]:  # noqa: ARG002
        """Cells that can only be named when those of `cells` are measured, as what was chosen.

        Args:
            rows: of `cells`, each cell and its measurement joined.
        """
        return []

    def follow_up_seconds(self) -> float:
        """About how long those take on one core, for the prediction."""
        return 0.0

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
        if path.stem not in ("__init__", "runner"):
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
