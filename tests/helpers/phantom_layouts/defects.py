"""Known defects of archives, put into a phantom at known places, and the list of them.

A layout asks `Defects` where to put each kind, and notes what it did. ``truth/defects.json`` then
says of every defect in which file and row it is and where whoever reads the tree must count it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from medclip_debias.errors import UserError

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

    def write(self, root: Path) -> dict[str, int]:
        if not self.share:
            return {}
        text = json.dumps([asdict(defect) for defect in self.found], indent=1) + "\n"
        (root / "truth" / "defects.json").write_text(text, encoding="utf-8")
        return {"defects": len(self.found)}
