"""Known defects of archives, put into a phantom at known places, and the list of them.

A layout has a list of `Kind`; `Defects.put` puts each into some rows. ``truth/defects.json`` then
says of every defect in which file and row it is and where whoever reads the tree must count it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np

from medclip_debias.errors import UserError
from phantom_layouts.content import ContentStudy, ContentView

T = TypeVar("T")

Shown = Literal["funnel", "describe", "rejected", "missing"]
"""Where a defect is counted: in a step of ``funnel.json`` (its dropped count, or its kept count
where the step only counts), in a sentence of what was found, in ``rejected.csv``, in
``missing.csv``."""


@dataclass(frozen=True)
class Expected:
    """Who counts a defect.

    Attributes:
        shown: where.
        what: name of the funnel's step; words of the sentence, which holds the number of the
            defects that name it; in the other cases the image's id.
    """

    shown: Shown
    what: str


@dataclass(frozen=True)
class Defect:
    """One defect.

    Attributes:
        kind: as in ``missing_image``.
        file: in the tree.
        where: row, image or other place in that file; ``""`` for the whole file.
        expected: who counts it.
    """

    kind: str
    file: str
    where: str
    expected: Expected


@dataclass(eq=False)
class Row:
    """A row or entry of a file, or an image: where a defect can be.

    Attributes:
        file: in the tree.
        study: what it is of.
        view: and the image.
        cells: what is written of it (of an image: its path).
        name: what the list of defects calls it; its number in the file by default.
        main: it may have a defect.
    """

    file: str
    study: ContentStudy
    view: ContentView
    cells: Any
    name: str | None = None
    main: bool = True


class Kind(NamedTuple):
    """A known defect.

    Attributes:
        name: as in ``missing_image``.
        what: as `Expected` has it, with ``{file}`` and ``{row}`` for their names.
        change: changes a row, or returns the cells of one to add.
        wanted: tells which rows can have it.
        shown: as `Expected` has it.
        file: the one it is in, where that is not the row's.
    """

    name: str
    what: str
    change: Callable[[Row], Any]
    wanted: Callable[[Row], object] = bool
    shown: Shown = "funnel"
    file: str = ""


REPEAT = "row of {file} is not a repeat"
VALUE = "label cell of {file} has a value that the archive defines"


def again(row: Row) -> Any:
    """The cells of a row that repeats it."""
    return copy(row.cells)


def setting(at: Any, value: Any) -> Callable[[Row], None]:
    """A change that sets one cell."""

    def change(row: Row) -> None:
        row.cells[at] = value

    return change


class Defects:
    """Where defects go.

    Attributes:
        found: every defect so far.

    Args:
        share: of the candidates of each kind; with any share over 0 there is at least one.
        seed: of the choice.
    """

    def __init__(self, share: float, seed: int) -> None:
        self.share = share
        self.found: list[Defect] = []
        self._rng = np.random.default_rng([seed, 1 << 22])
        self._used: set[object] = set()

    def choose(
        self, candidates: Sequence[T], owner: Callable[[T], object] = lambda item: item
    ) -> list[T]:
        if not self.share:
            return []
        free = [item for item in candidates if owner(item) not in self._used]
        if not free:
            raise UserError(
                f"the settings of the phantom: defects {self.share:g} of so few studies leave no"
                " place for each kind of defect; make more studies, or give a smaller share."
            )
        chosen: list[T] = []
        count = max(1, round(self.share * len(candidates)))
        for at in self._rng.permutation(len(free)):
            item = free[int(at)]
            if len(chosen) < count and owner(item) not in self._used:
                self._used.add(owner(item))
                chosen.append(item)
        return chosen

    def add(self, kind: str, file: str, where: str, shown: Shown, what: str) -> None:
        self.found.append(Defect(kind, file, where, Expected(shown, what)))

    def put(self, kinds: Iterable[Kind], rows: list[Row]) -> None:
        """Put each kind into some of the rows, one a study; new rows are added to them."""
        candidates = [row for row in rows if row.main]
        for kind in kinds:
            wanted = [row for row in candidates if kind.wanted(row)]
            for row in self.choose(wanted, lambda row: row.study.place):
                where, file = _where(row, rows), kind.file or row.file
                cells = kind.change(row)
                if cells is not None:
                    rows.append(replace(row, file=file, cells=cells))
                    where = _where(rows[-1], rows)
                what = kind.what.format(file=Path(file).name, row=row.name)
                self.add(kind.name, file, where, kind.shown, what)

    def write(self, root: Path) -> dict[str, int]:
        if not self.share:
            return {}
        text = json.dumps([asdict(defect) for defect in self.found], indent=1) + "\n"
        (root / "truth" / "defects.json").write_text(text, encoding="utf-8")
        return {"defects": len(self.found)}


def _where(row: Row, rows: Iterable[Row]) -> str:
    if row.name is not None:
        return row.name
    return f"row {[other for other in rows if other.file == row.file].index(row) + 2}"
