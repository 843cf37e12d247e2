"""What every protocol is: it plans what to encode, looks at each image once, then measures.

`medclip_debias.evaluation.evaluate` only composes protocols; a new one is one module with a
function that plans it (or says why the set does not allow it, as `Skipped`) and a class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import pandas as pd

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

HELD_OUT = "held_out"
Views = Literal["frontal", "all"]
"""Which images are judged: the frontal ones, or all of the set."""


class Skipped(UserError):
    """The set does not allow a protocol; the others go on, and the results name the reason."""


@dataclass(frozen=True)
class Draw:
    """How intervals are computed: how often patients are resampled, and from which seed."""

    resamples: int = 1000
    seed: int = 0

    @property
    def keywords(self) -> dict[str, int]:
        """As keywords of `medclip_debias.evaluation.bootstrap.bootstrap_intervals`."""
        return {"resamples": self.resamples, "seed": self.seed}


@dataclass(frozen=True)
class Measured:
    """What a protocol found.

    Attributes:
        results: its part of ``results.json``.
        items: one row for each measured thing, for paired statistics; ``id`` and ``patient`` are
            still the set's own (`medclip_debias.evaluation.item_tables` replaces them). None for
            none.
    """

    results: dict[str, Any]
    items: pd.DataFrame | None = None


class Protocol(ABC):
    """One protocol on one set.

    Attributes:
        name: its key in ``results.json``.
        items_name: file of its items, without ending.
        texts: sentences that it needs as vectors.
        rows: rows of the set's images that it wants to see.
    """

    name: ClassVar[str]
    items_name: ClassVar[str]
    texts: list[str]
    rows: frozenset[int]

    @abstractmethod
    def begin(self, model: ImageTextModel, vectors: Tensor) -> None:
        """Take the unit vectors ``[len(texts), D]`` before the first image comes."""

    @abstractmethod
    def see(self, rows: Sequence[int], features: ImageFeatures) -> None:
        """Take the features of some of the images in ``rows``."""

    @abstractmethod
    def measure(self, draw: Draw) -> Measured:
        """Give the metrics, after every image was seen.

        Raises:
            Skipped: what was seen allows no metric.
        """


# ------------------------------------------------------------------- shared by the planners


def geometry_of(data: PreparedSet, row: int, input_size: int) -> SquareGeometry:
    """The way of the image in ``row`` into a model of ``input_size``."""
    return SquareGeometry(
        height=int(data.images["height"].iloc[row]),
        width=int(data.images["width"].iloc[row]),
        size=data.settings.size,
        input_size=input_size,
        fit=data.settings.fit,
    )


def patients_of(data: PreparedSet, rows: Sequence[int]) -> list[str]:
    """Patient of each of the images in ``rows``."""
    return [str(name) for name in data.images["patient_id"].iloc[list(rows)]]


def rows_of_split(data: PreparedSet, split: str, views: Views = "all") -> list[int]:
    """Rows of the images in ``split``, of the views that are judged."""
    rows = [row for row, name in enumerate(data.images["split"]) if name == split]
    return judged(data, rows, views)


def judged(data: PreparedSet, rows: Sequence[int], views: Views) -> list[int]:
    """Those of ``rows`` whose view is judged, in their order."""
    return list(rows) if views == "all" else [row for row in rows if data.frontal[row]]
