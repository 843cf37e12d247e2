"""A folder of benchmark results: whose they are, on which cards, and whether they fit together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from medclip_debias.bench.card import Card, packaged_cards
from medclip_debias.bench.record import MODEL, RECORD, Figure, ModelRecord, Record, read_record
from medclip_debias.config import validate
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.evaluation.catalogue import METRICS, Metric, value_at
from medclip_debias.evaluation.item_metrics import ITEMS
from medclip_debias.files import read_json, read_json_or_none

KNOWN = {metric.key: metric for metric in METRICS}


@dataclass(frozen=True)
class Result:
    """One model on one card.

    Attributes:
        folder: that holds ``record.json``, ``results.json`` and ``items/``.
        record: what was reached.
    """

    folder: Path
    record: Record

    @property
    def complete(self) -> bool:
        """Whether (nearly) every image of the card was judged."""
        return self.record.status == "complete"

    @cached_property
    def trained_there(self) -> bool:
        """Whether the model was trained on the archive that it is judged on, as it says itself."""
        content = read_json_or_none(self.folder / "results.json")
        found = value_at(content, "archives.relation") if isinstance(content, dict) else None
        return found in ("same set", "same archive")


@dataclass(frozen=True)
class Task:
    """A card that somebody was run on.

    Attributes:
        name, version: of the card.
        card: the packaged card, where it is the one that was run; else None, and with it titles
            and the figures of others.
        results: by the model's name, in the order of the models; who lacks it is not in it.
    """

    name: str
    version: int
    card: Card | None
    results: dict[str, Result]

    @property
    def full_name(self) -> str:
        """Name and version."""
        return f"{self.name}@{self.version}"

    @property
    def title(self) -> str:
        """For people."""
        return self.card.title if self.card else self.full_name

    @property
    def kind(self) -> str:
        """Of task."""
        return self.card.kind if self.card else "unknown"

    @property
    def archive(self) -> str:
        """Whose images: what stands before the card's slash, for the phantom has many layouts."""
        return self.name.partition("/")[0]

    @property
    def generated(self) -> bool:
        """Whether its radiographs are the phantom's."""
        return self.archive == "phantom"

    @property
    def metrics(self) -> tuple[str, ...]:
        """Keys of the card's metrics, the one that ranks first."""
        if self.card:
            return self.card.metrics
        every = [key for one in self.results.values() for key in one.record.metrics]
        return tuple(dict.fromkeys(every))

    def figure(self, model: str, metric: str) -> Figure | None:
        """What a model reached, None where it was not measured."""
        found = self.results.get(model)
        return found.record.metrics.get(metric) if found else None


@dataclass(frozen=True)
class Results:
    """Models and tasks of one folder.

    Attributes:
        models: whose results they are, by name, sorted.
        tasks: sorted by name.
    """

    models: dict[str, ModelRecord]
    tasks: tuple[Task, ...]


def metric_of(key: str) -> Metric:
    """The catalogue's entry of a key; one that a newer version measures is shown by its key."""
    if key in KNOWN:
        return KNOWN[key]
    protocol, _, name = key.partition(".")
    # A variant, as study_retrieval.report.lenient.recall, has the direction of what it varies.
    for metric in METRICS:
        if metric.protocol == protocol and name.endswith(f".{metric.name}"):
            return replace(metric, name=name, path="", title=f"{metric.title} ({key})", item="")
    return Metric(protocol, name, key, "", "share", compared=False)


def can_be_recomputed(key: str) -> bool:
    """Whether a metric follows from the item table of its protocol."""
    return key in KNOWN and KNOWN[key].compared and KNOWN[key].protocol in ITEMS


def read_results(
    folder: Path, *, cards: Sequence[str] | None = None, models: Sequence[str] | None = None
) -> Results:
    """Read ``RESULTS/MODEL/CARD@VERSION/record.json`` of every model, or of some.

    Args:
        folder: results of ``bench``.
        cards: names of cards, with or without ``@version``; all by default.
        models: their names; all by default, in the order of their names.

    Raises:
        UserError: there are no results, a name is unknown, or two results are not of one task.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give the --out of 'bench'.")
    found = [read_model(path.parent) for path in sorted(folder.glob(f"*/{MODEL}"))]
    names = [model.name for model, _ in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{folder}: two models have the name '{twice}'; rename one in {MODEL}.")
    if not found:
        raise UserError(f"{folder}: holds no model's results (MODEL/{MODEL}); run 'bench' first.")
    order = _chosen(names, models, "model", folder) if models else sorted(names)
    by_name = {model.name: (model, results) for model, results in found}
    tasks: dict[tuple[str, int], dict[str, Result]] = {}
    for name in order:
        for result in by_name[name][1]:
            card = result.record.card
            tasks.setdefault((card.name, card.version), {})[name] = result
    if cards:
        known = [word for name, version in tasks for word in (name, f"{name}@{version}")]
        wanted = set(_chosen(known, cards, "card", folder))
        tasks = {
            (name, version): results
            for (name, version), results in tasks.items()
            if {name, f"{name}@{version}"} & wanted
        }
    if not tasks:
        raise UserError(f"{folder}: these models have no result; run 'bench' first.")
    _check_versions(list(tasks.items()))
    return Results(
        {name: by_name[name][0] for name in order},
        tuple(_task(key, results) for key, results in sorted(tasks.items())),
    )


def read_model(folder: Path) -> tuple[ModelRecord, list[Result]]:
    """A model's own record, and its results.

    Raises:
        UserError: one of its files is missing or damaged.
    """
    path = folder / MODEL
    model = validate(ModelRecord, read_json(path, "run 'bench' again"), str(path))
    places = sorted(place.parent for place in folder.glob(f"*/{RECORD}"))
    return model, [Result(place, read_record(place)) for place in places]


def _chosen(known: Sequence[str], wanted: Sequence[str], kind: str, folder: Path) -> list[str]:
    for word in wanted:
        if word not in known:
            raise UserError(
                f"{folder}: has no {kind} '{word}'{did_you_mean(word, known)}; it has "
                f"{', '.join(dict.fromkeys(known))}."
            )
    return list(dict.fromkeys(wanted))


def _check_versions(tasks: Sequence[tuple[tuple[str, int], dict[str, Result]]]) -> None:
    """One version of each card, one content, one protocol, one list of images."""
    seen: dict[str, Result] = {}
    whole: dict[str, Result] = {}
    for (name, _), results in tasks:
        for result in results.values():
            record, other = result.record, seen.setdefault(name, result)
            pair = f"{result.folder / RECORD} and {other.folder / RECORD}"
            for what, ours, theirs in (
                ("versions", record.card.version, other.record.card.version),
                ("presets", record.preset, other.record.preset),
                ("contents", record.card.hash, other.record.card.hash),
            ):
                if ours != theirs:
                    raise UserError(
                        f"{pair}: are results of different {what} of the card '{name}' ({ours} and"
                        f" {theirs}), which do not belong into one table; run 'bench' again for one"
                        " of them, or leave one out with --models or --cards."
                    )
            if not result.complete:  # it is marked, and neither ranked nor paired
                continue
            other = whole.setdefault(name, result)
            lists = record.judged.list_hash, other.record.judged.list_hash
            if lists[0] != lists[1]:
                raise UserError(
                    f"{result.folder / RECORD} and {other.folder / RECORD}: judged different images"
                    f" of the card '{name}' ({record.judged.found} and {other.record.judged.found};"
                    f" list_hash {lists[0]} and {lists[1]}), which do not belong into one table;"
                    " run 'bench' on the same images, or leave one out with --models."
                )


def _task(key: tuple[str, int], results: dict[str, Result]) -> Task:
    name, version = key
    card = packaged_cards().get(name)
    first = next(iter(results.values())).record.card
    same = card is not None and (card.version, card.content_hash) == (version, first.hash)
    return Task(name, version, card if same else None, results)
