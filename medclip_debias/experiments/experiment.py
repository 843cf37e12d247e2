"""What an experiment is: a grid of cells, how one is measured, and what the metrics say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from medclip_debias.config import Settings, json_hash
from medclip_debias.files import atomic_folder
from medclip_debias.reporting.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Cell = Mapping[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Summary:
    """What an experiment found."""

    findings: list[str]
    tables: list[Table] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shared:
    """What several cells read: made once, in a folder of its own.

    Attributes:
        content: all that it follows from; names the folder.
        make: writes it into a folder.
        seconds: about how long that takes on one core; part of the predicted time.
    """

    content: Mapping[str, Any]
    make: Callable[[Mapping[str, Any], Path], None]
    seconds: float = 0.0

    def folder(self, inputs: Path) -> Path:
        """Where it lies below ``inputs``, made or not."""
        return inputs / json_hash([1, dict(self.content)])


class Experiment(ABC):
    """Base of every experiment: a grid of cells, each measured once and kept.

    A cell is a mapping of plain values that holds everything its measurement depends on (a seed
    too), so that equal cells have equal results, and a cell that was measured is never measured
    again.

    Attributes:
        kind: what it is called in ``results.json``.
        name: of the experiment; a part of the key of its cells.
        title: of the page.
        source: what it comes from, as a paper and its section; may be empty.
        plot: what the page calls the plot beside it.
        reader: what reads ``settings.yaml``, for the page.
        version: raised when the measurement changes, so that old results are not taken.
        settings_class: its settings.
        about: what is done, for the page (Markdown).
    """

    kind: ClassVar[str] = "experiment"
    name: ClassVar[str]
    title: str
    source: ClassVar[str] = ""
    plot: ClassVar[str] = "figure.svg"
    reader: ClassVar[str] = "`medclip-debias experiment`"
    version: ClassVar[int] = 1
    settings_class: ClassVar[type[Settings]]
    about: str = ""

    settings: Any

    def __init__(self, settings: Any = None, inputs: Path | None = None) -> None:
        """Take the experiment's settings, and the folder of what cells share."""
        self.settings = settings or self.settings_class()
        self.inputs = inputs

    @abstractmethod
    def cells(self) -> list[dict[str, Any]]:
        """The grid, in the order of measurement."""

    @abstractmethod
    def seconds(self, cell: Cell) -> float:
        """About how long ``cell`` takes on one core; shown before a run starts."""

    @abstractmethod
    def measure(self, cell: Cell) -> Row:
        """Measure one cell: a mapping of plain values. Depends on ``cell`` alone."""

    def begin(self, workers: int) -> None:
        """Called in each of ``workers`` processes before its first cell; nothing by default."""
        del workers

    def key(self, cell: Cell) -> str:
        """Names a cell and its measurement: 16 hex digits."""
        return json_hash([self.name, type(self).version, dict(cell)])

    def shared(self, cell: Cell) -> Shared | None:  # noqa: ARG002
        """What ``cell`` reads that other cells may read as well, by the cell alone."""
        return None

    def shared_folder(self, cell: Cell) -> Path:
        """The folder of what ``cell`` shares with others; made if it is not there."""
        shared = self.shared(cell)
        assert shared is not None
        assert self.inputs is not None
        folder = shared.folder(self.inputs)
        if not folder.is_dir():
            with atomic_folder(folder) as work:
                shared.make(shared.content, work)
        return folder

    @abstractmethod
    def summary(self, rows: Sequence[Row]) -> Summary:
        """Say what the rows (cell and measurement joined) show."""

    @abstractmethod
    def figure(self, rows: Sequence[Row]) -> Figure:
        """Draw the rows; readable in grey and for the colour-blind."""

    def label(self) -> str:
        """What it is called where it runs."""
        return self.name

    def shown(self, settings: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of its settings that the page lists."""
        return settings

    @abstractmethod
    def command(self) -> str:
        """The command line that repeats it, for the page."""
