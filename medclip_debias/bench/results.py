"""A folder of benchmark results: whose they are, on which cards, and whether they fit together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from medclip_debias.bench.card import Card, CardName, Published, packaged_cards
from medclip_debias.bench.record import (
    CACHE,
    MODEL,
    RECORD,
    RESULTS,
    ModelRecord,
    Record,
    read_model,
    read_record,
)
from medclip_debias.errors import UserError, one_of
from medclip_debias.evaluation.bootstrap import Replicated, replicates
from medclip_debias.evaluation.catalogue import METRICS, Metric, Unit, address
from medclip_debias.evaluation.item_tables import ITEMS, item_file, read_items, statistics_of
from medclip_debias.evaluation.table import Results as Table
from medclip_debias.evaluation.table import checked
from medclip_debias.files import read_json

KNOWN = {metric.key: metric for metric in METRICS}
RESAMPLES, SEED = 1000, 0
"""Of the patients, wherever metrics are computed from items."""
_SHARES = re.compile(r"au(pr)?c.*|(recall|precision)_at_\d+|one_of_several|.*accuracy|dice.*")
"""Metrics of presets alone that are shares."""
_LARGEST = 256 << 20
_MOST_ITEMS = 5_000_000
_AGAIN = "run 'bench' again"


@dataclass(frozen=True)
class Result:
    """One model on one card."""

    model: str
    folder: Path
    record: Record
    root: Path
    _tables: dict[str, pd.DataFrame] = field(default_factory=dict, repr=False)
    _replicates: dict[str, dict[str, Replicated]] = field(default_factory=dict, repr=False)

    @property
    def card_names(self) -> tuple[str, str]:
        """What its card is called, without and with its version."""
        return self.record.card.name, self.record.card.full_name

    @property
    def complete(self) -> bool:
        """Whether (nearly) every image of the card was judged."""
        return self.record.status == "complete"

    @cached_property
    def content(self) -> Table:
        """``results.json``."""
        path = self.folder / RESULTS
        return checked(read_json(path, _AGAIN, limit=_LARGEST, folder=self.root), str(path))

    @property
    def trained_there(self) -> bool:
        """Whether the model was trained on the archive that it is judged on, as it says itself."""
        archives = self.content.get("archives") or {}
        return archives.get("relation") in ("same set", "same archive")

    @property
    def protocols(self) -> list[str]:
        """Protocols of its metrics whose items it has."""
        named = {key.partition(".")[0] for key in self.record.metrics}
        return [protocol for protocol in ITEMS if protocol in named]

    def item_file(self, protocol: str) -> Path:
        """The item table of a protocol."""
        return item_file(self.folder, protocol)

    def items(self, protocol: str) -> pd.DataFrame:
        """An item table, sorted by item, so that equal sets of items are equal tables."""
        if protocol not in self._tables:
            self._tables[protocol] = read_items(
                self.item_file(protocol), _AGAIN, rows=_MOST_ITEMS, folder=self.root
            )
        return self._tables[protocol]

    def has_truth(self, protocol: str) -> bool:
        """Whether what no model decides, as labels, stands in a table, or was never needed."""
        columns = [str(name) for name in self.items(protocol).columns]
        return all(any(c.startswith(part) for c in columns) for part in ITEMS[protocol].truth)

    def replicates(self, protocol: str) -> dict[str, Replicated]:
        """The protocol's metrics on resampled patients by their names; none without labels."""
        if not self.has_truth(protocol):
            return {}
        if protocol not in self._replicates:
            table, path = self.items(protocol), self.item_file(protocol)
            statistics = statistics_of(protocol, self.content.details(protocol), table, path)
            patients = [str(name) for name in table["patient"]]
            runs = replicates({"": statistics}, patients, resamples=RESAMPLES, seed=SEED)
            self._replicates[protocol] = runs[""]
        return self._replicates[protocol]


@dataclass(frozen=True)
class Task:
    """A card that somebody was run on."""

    named: CardName
    card: Card | None
    results: dict[str, Result]

    @property
    def full_name(self) -> str:
        """Name and version."""
        return self.named.full_name

    @property
    def generated(self) -> bool:
        """Whether its radiographs are the phantom's."""
        return self.named.name.startswith("phantom/")

    def figures(self, key: str) -> dict[str, Published]:
        """What others published of a metric, by whose it is; not reproduced."""
        published = self.card.published if self.card else ()
        return {figure.model: figure for figure in published if figure.metric == key}

    @property
    def metrics(self) -> tuple[str, ...]:
        """Keys of the card's metrics, the one that ranks first."""
        if self.card:
            return self.card.metrics
        every = [key for one in self.results.values() for key in one.record.metrics]
        return tuple(dict.fromkeys(every))


@dataclass(frozen=True)
class Results:
    """Models and tasks of one folder."""

    models: dict[str, ModelRecord]
    tasks: tuple[Task, ...]

    @property
    def all(self) -> list[Result]:
        """Every result."""
        return [result for task in self.tasks for result in task.results.values()]


def metric_of(key: str) -> Metric:
    """The catalogue's entry of a key; one that a newer version measures is shown by its key."""
    if key in KNOWN:
        return KNOWN[key]
    protocol, name, _ = address(key)
    for metric in METRICS:  # as a preset counts it
        if (metric.protocol, metric.name) == (protocol, name):
            return replace(metric, alias="", title=f"{metric.title} ({key})", item="")
    rank = name == "mean_rank"
    unit: Unit = "rank" if rank else "share" if _SHARES.fullmatch(name) else "ratio"
    return Metric(protocol, name, key, "", unit, lower_is_better=rank, compared=False)


def can_be_recomputed(key: str) -> bool:
    """Whether a metric follows from the item table of its protocol."""
    return key in KNOWN and KNOWN[key].compared and KNOWN[key].protocol in ITEMS


def read_folder(
    folder: Path, *, cards: Sequence[str] | None = None, models: Sequence[str] | None = None
) -> Results:
    """Read ``RESULTS/MODEL/CARD@VERSION/record.json`` of every model, or of some."""
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give the --out of 'bench'.")
    places = sorted(p.parent for p in folder.glob(f"*/{MODEL}") if p.parent.name != CACHE)
    if not places:
        raise UserError(f"{folder}: holds no model's results (MODEL/{MODEL}); run 'bench' first.")
    by_name: dict[str, tuple[ModelRecord, Path]] = {}
    for place in places:
        model = read_model(place, folder)
        if model.name in by_name:
            raise UserError(
                f"{folder}: two models have the name '{model.name}'; rename one in {MODEL}."
            )
        by_name[model.name] = model, place
    known = sorted(by_name)
    order = [one_of(name, known, "model") for name in dict.fromkeys(models or known)]
    results = [
        Result(name, path.parent, read_record(path.parent, folder), folder)
        for name in order
        for path in sorted(by_name[name][1].glob(f"*/{RECORD}"))
    ]
    if cards:
        names = list(dict.fromkeys(name for result in results for name in result.card_names))
        wanted = {one_of(name, names, "card") for name in cards}
        results = [result for result in results if wanted & set(result.card_names)]
    if not results:
        raise UserError(f"{folder}: these models have no result; run 'bench' first.")
    of_card: dict[str, list[Result]] = {}
    for result in results:
        of_card.setdefault(result.record.card.name, []).append(result)
    tasks = tuple(_task(own) for _, own in sorted(of_card.items()))
    return Results({name: by_name[name][0] for name in order}, tasks)


def _task(results: list[Result]) -> Task:
    """Results on one card: of one version of it, one content, one protocol, one list of images."""
    first, *others = results
    named = first.record.card
    for result in others:
        record = result.record
        for what, ours, theirs in (
            ("versions", record.card.version, named.version),
            ("presets", record.preset, first.record.preset),
            ("contents", record.card.hash, named.hash),
        ):
            if ours != theirs:
                raise UserError(
                    f"{result.folder / RECORD} and {first.folder / RECORD}: are results of"
                    f" different {what} of the card '{named.name}' ({ours} and {theirs}), which"
                    " cannot share one table; run 'bench' again for one of them, or leave one out"
                    " with --models or --cards."
                )
    # What is incomplete is marked, and neither ranked nor paired.
    complete = [result for result in results if result.complete]
    for result in complete[1:]:
        one, two = (each.record.judged for each in (result, complete[0]))
        if one.list_hash != two.list_hash:
            raise UserError(
                f"{result.folder / RECORD} and {complete[0].folder / RECORD}: judged different"
                f" images of the card '{named.name}' ({one.found} and {two.found}; list_hash"
                f" {one.list_hash} and {two.list_hash}), which cannot share one table;"
                " run 'bench' on the same images, or leave one out with --models."
            )
    card = packaged_cards().get(named.name)
    same = card is not None and card.measured == named
    return Task(named, card if same else None, {result.model: result for result in results})
