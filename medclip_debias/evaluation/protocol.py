"""What every protocol is: it plans what to encode, looks at each image once, then measures.

`medclip_debias.evaluation.evaluate` only composes protocols; a new one is one module in
``evaluation/protocols/`` with a class that plans itself (or says why the set does not allow it, as
`Skipped`), and an entry in the catalogue for each of its metrics.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.views import Views
from medclip_debias.errors import UserError
from medclip_debias.evaluation.bootstrap import (
    Replicated,
    Statistics,
    mean_where_known,
    replicates,
)
from medclip_debias.evaluation.catalogue import PROTOCOLS, of_protocol
from medclip_debias.evaluation.table import Row
from medclip_debias.models.finite import finite
from medclip_debias.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.data.label_maps import LabelMap
    from medclip_debias.data.prompts import PromptSet
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.evaluation.options import EvaluationOptions
    from medclip_debias.evaluation.presets import Preset
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

T = TypeVar("T")
HELD_OUT = "held_out"
REGISTRY: Registry[type[Protocol]] = Registry("protocol", "medclip_debias.evaluation.protocols")


class Skipped(UserError):
    """The set does not allow a protocol; the others are measured, the results name the reason."""


class NotAsked(UserError):
    """A protocol without its file or annotations, about which the results are silent."""


@dataclass(frozen=True)
class Draw:
    """How intervals are computed: how often patients are resampled, and from which seed."""

    resamples: int = 1000
    seed: int = 0

    def estimates(self, statistics: Statistics, patients: Sequence[str]) -> Estimates:
        """The statistics of items of these patients, with intervals over the patients."""
        runs = {"": statistics}
        return Estimates(replicates(runs, patients, resamples=self.resamples, seed=self.seed)[""])


class Estimates(dict[str, Replicated]):
    """Statistics by name, resampled; those of a group are ``GROUP/NAME``."""

    def rows(
        self,
        prefix: str = "",
        *,
        n: int | None = None,
        fewer: Mapping[str, int] | None = None,
        of_class: str | None = None,
        group: str | None = None,
    ) -> list[Row]:
        """The statistics called ``prefix + NAME`` as rows, where they are finite.

        They rest on ``n`` items, but those that ``fewer`` names on as many as it says.
        """
        measured, fewer = [], fewer or {}
        for place, one in self.items():
            name = place.removeprefix(prefix)
            if place.startswith(prefix) and "/" not in name and math.isfinite(one.value):
                low, high = one.interval or (None, None)
                rests_on = fewer.get(place, n)
                measured.append(Row(name, one.value, low, high, rests_on, of_class, group))
        return measured

    def class_rows(
        self, classes: Sequence[str], fewer: Mapping[str, int] | None = None
    ) -> list[Row]:
        """The statistics ``CLASS/NAME`` of each of the classes of the items; see `rows`."""
        return [
            row
            for name, n in sorted(Counter(classes).items())
            for row in self.rows(f"{name}/", n=n, fewer=fewer, of_class=name)
        ]


@dataclass(frozen=True)
class Request:
    """What `evaluate` is asked for.

    ``labels`` is a table in the place of the set's labels, ``class_images`` a list of images for
    multi-class accuracy, ``phrases`` a box file in the place of the set's phrases, ``label_map``
    what label columns of other names say of the classes, ``triplets`` a file of reports with a
    finding negated and omitted.
    """

    data: PreparedSet
    split: str
    model: ImageTextModel
    prompts: PromptSet
    options: EvaluationOptions
    labels: Path | None = None
    class_images: Path | None = None
    phrases: Path | None = None
    model_folder: Path | None = None
    label_map: LabelMap | None = None
    triplets: Path | None = None
    _shared: dict[Callable[[Request], Any], Any] = field(default_factory=dict)

    def once(self, compute: Callable[[Request], T]) -> T:
        """What ``compute`` returns for this request; computed for the first protocol that asks."""
        if compute not in self._shared:
            self._shared[compute] = compute(self)
        result: T = self._shared[compute]
        return result


@dataclass(frozen=True)
class Measured:
    """What a protocol measured: rows of the table of results, and what it says beside them.

    ``items`` has one row for each measured thing, for paired statistics; its ``id`` and ``patient``
    are still the set's own (`medclip_debias.evaluation.item_tables` replaces them).
    """

    rows: list[Row]
    details: dict[str, Any]
    items: pd.DataFrame | None = None

    def row(self, metric: str, of_class: str | None = None, group: str | None = None) -> Row | None:
        """The row of a metric; None where there is none."""
        place = (metric, of_class, group)
        return next((r for r in self.rows if (r.metric, r.of_class, r.group) == place), None)

    def value(
        self, metric: str, of_class: str | None = None, group: str | None = None
    ) -> float | None:
        row = self.row(metric, of_class, group)
        return None if row is None else row.value

    def by_class(self, metric: str) -> dict[str, float]:
        """A metric of each class that has it."""
        rows = [row for row in self.rows if row.metric == metric and row.group is None]
        return {row.of_class: row.value for row in rows if row.of_class}


class Protocol(ABC):
    """One protocol on one set; a subclass with a ``name`` is registered under it.

    Attributes:
        name: in the table of results, and of its metrics in the catalogue.
        file: of its items below ``items/``, without ending.
        truth: beginnings of the items' columns that no model decides, equal in all runs on a set.
        reads_regions: whether it looks at the images' regions; a protocol that only asks the model
            for whole scores says no, and a cache then need not keep them.
        counted: what ``counts`` of ``results.json`` calls its `count`, 0 where it is skipped.
        texts: sentences that it needs as vectors.
        rows: rows of the set's images that it wants to see.
    """

    name: ClassVar[str]
    file: ClassVar[str]
    truth: ClassVar[tuple[str, ...]] = ()
    reads_regions: ClassVar[bool] = True
    counted: ClassVar[str] = ""
    count: int = 0
    texts: list[str]
    rows: frozenset[int]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            REGISTRY.add(cls.name, cls)

    @abstractmethod
    def __init__(self, request: Request) -> None:
        """Plan what to look at.

        Raises:
            Skipped: the set or the model does not allow it.
            NotAsked: it needs a file that was not given.
            UserError: a file that was given cannot be used.
        """

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

    @classmethod
    def statistics(cls, details: Mapping[str, Any], items: pd.DataFrame) -> Statistics:
        """Back from the details and items of `measure` to metrics, under any weights of items.

        By default the means of the columns that the catalogue names, of what is not NaN.
        """
        del details
        values = {
            metric.name: items[metric.item].to_numpy(np.float64)
            for metric in of_protocol(cls.name)
            if metric.compared and metric.item in items.columns
        }
        return lambda weights: {name: mean_where_known(v, weights) for name, v in values.items()}

    def measured(
        self,
        draw: Draw,
        items: pd.DataFrame,
        details: dict[str, Any],
        classes: Sequence[str] = (),
        fewer: Mapping[str, int] | None = None,
    ) -> Measured:
        """The `statistics` of the items with intervals, also of each of their classes.

        ``fewer`` as for `Estimates.rows`.
        """
        estimates = draw.estimates(self.statistics(details, items), items["patient"].tolist())
        whole = estimates.rows(n=len(items), fewer=fewer)
        return Measured(whole + estimates.class_rows(classes, fewer), details, items)

    def under(self, preset: Preset) -> dict[str, Any] | None:
        """Metrics counted as a preset counts; None where it, or this protocol, knows none."""
        del preset
        return None

    def write_pictures(self, out: Path, data: PreparedSet, count: int) -> None:
        """Write up to ``count`` pictures below ``out``; most protocols have none to show."""
        del out, data, count


class ScoreProtocol(Protocol):
    """A protocol that asks for the scores ``[len(texts)]`` of each image with all its texts."""

    reads_regions = False
    scores: dict[int, NDArray[np.float32]]
    column: dict[str, int]

    def begin(self, model: ImageTextModel, vectors: Tensor) -> None:
        self.model, self.vectors, self.scores = model, vectors, {}
        self.column = {text: number for number, text in enumerate(self.texts)}

    def see(self, rows: Sequence[int], features: ImageFeatures) -> None:
        scores = finite(self.model.score(features, self.vectors), self.name)
        self.scores |= dict(zip(rows, scores, strict=True))


def registered() -> list[type[Protocol]]:
    """Every protocol, in the order of the results: that of the catalogue."""
    order = {name: place for place, name in enumerate(PROTOCOLS)}
    return sorted(REGISTRY.all().values(), key=lambda kind: order.get(kind.name, len(order)))


# ------------------------------------------------------------------- shared by the protocols


def items_by_row(rows: Iterable[int]) -> dict[int, list[int]]:
    """Numbers of the items on each image, from the row of each item's image."""
    items: dict[int, list[int]] = {}
    for number, row in enumerate(rows):
        items.setdefault(row, []).append(number)
    return items


def columns_of(table: pd.DataFrame, *names: str) -> list[NDArray[np.float64]]:
    """Columns of a table as numbers ``[rows]`` each."""
    return [table[name].to_numpy(dtype=np.float64) for name in names]


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


def study_sentences(data: PreparedSet) -> dict[str, list[str]]:
    """The distinct sentences of each study that has any, in their order."""
    table = data.sentences[["study_id", "text"]].astype(str).drop_duplicates()
    return {str(study): texts.tolist() for study, texts in table.groupby("study_id")["text"]}


def rows_of_split(data: PreparedSet, split: str, views: Views = "all") -> list[int]:
    """Rows of the images in ``split``, of the views that are judged."""
    rows = [row for row, name in enumerate(data.images["split"]) if name == split]
    return judged(data, rows, views)


def judged(data: PreparedSet, rows: Sequence[int], views: Views) -> list[int]:
    """Those of ``rows`` whose view is judged, in their order."""
    return list(rows) if views == "all" else [row for row in rows if data.frontal[row]]
