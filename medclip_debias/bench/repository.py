"""A results repository: one folder a model, figures and hashed ids, checked before it is believed.

Others add to it by pull request, so nothing in it is taken on trust: every file has its place,
every figure that follows from the items is computed again, and what could name a patient, a place
on somebody's disk or a report's words is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medclip_debias.bench.card import Card, packaged_cards
from medclip_debias.bench.pairs import (
    RESAMPLED,
    by_protocol,
    has_truth,
    item_file,
    read_items,
    read_resampled,
    resampled_file,
)
from medclip_debias.bench.record import MODEL, RECORD, ModelRecord, Record, read_record
from medclip_debias.bench.results import KNOWN
from medclip_debias.config import validate
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.evaluation.catalogue import PROTOCOLS, value_at
from medclip_debias.evaluation.item_metrics import ITEMS
from medclip_debias.evaluation.item_tables import FOLDER
from medclip_debias.evaluation.schema import read_results
from medclip_debias.files import read_json

TOLERANCE = 1e-6
"""How far a figure may lie from the one that its items give."""

KEPT = (
    *("format", "split", *PROTOCOLS, "skipped", "notes", "counts", "data_hash", "model_hash"),
    *("code_hash", "seed", "options", "archives", "versions"),
)
"""Parts of ``results.json`` that are shared."""

BESIDE = re.compile(r"README(\.md)?|LICEN[CS]E.*|\.git.*|CONTRIBUTING\.md")
"""What may lie beside the models."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,99}")
"""A model's name, which is its folder's."""

_DIGEST = re.compile(r"[0-9a-f]{16}")
_HASH = re.compile(r"[0-9a-f]{16,64}")
_PATH = re.compile(r"""(?:^|[\s"'=(,])(?:/[\w.-]+|~[/\\]|[A-Za-z]:[\\/]|\\\\|file:)""")
_LONGEST = 600
"""Letters of a text that is no report: the longest note of this program is shorter."""


@dataclass
class Report:
    """What a check found.

    Attributes:
        faults: one sentence each, with the file.
        models, results: how many were looked at.
        recomputed: figures that were computed again from the items.
        taken: figures that could not be, by the reason.
    """

    faults: list[str] = field(default_factory=list)
    models: int = 0
    results: int = 0
    recomputed: int = 0
    taken: dict[str, int] = field(default_factory=dict)

    @property
    def says(self) -> list[str]:
        """The outcome in sentences."""
        first = (
            f"{self.models} models with {self.results} results: {len(self.faults)} faults. "
            f"{self.recomputed} figures were computed again from their items and agree."
        )
        rest = [f"{count} figures stand as given: {why}." for why, count in self.taken.items()]
        return [first, *rest]

    def take(self, why: str) -> None:
        """Count a figure that could not be computed again."""
        self.taken[why] = self.taken.get(why, 0) + 1


def validate_repository(folder: Path) -> Report:
    """Check every model's folder.

    Raises:
        UserError: there is no such folder, or no model in it.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: there is no such folder; give a results repository.")
    report = Report()
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink():
            report.faults.append(f"{entry}: is a link, which a results repository does not have.")
        elif entry.is_dir() and not entry.name.startswith("."):
            report.models += 1
            report.faults += _model_faults(entry, report)
        elif not BESIDE.fullmatch(entry.name):
            report.faults.append(
                f"{entry}: does not belong here; a results repository has one folder a model, and "
                "README.md and LICENSE beside them."
            )
    if not report.models:
        raise UserError(f"{folder}: holds no model's folder; 'bench pack' writes one.")
    return report


def _model_faults(folder: Path, report: Report) -> Iterator[str]:
    path = folder / MODEL
    model: ModelRecord | None = None
    try:
        model = validate(ModelRecord, read_json(path, "'bench pack' writes it"), str(path))
    except UserError as error:
        yield str(error)
    if model is not None:
        if model.name != folder.name or not NAME.fullmatch(model.name):
            yield (
                f"{path}: names the model '{model.name[:100]}'; the name must be the folder's, of "
                "letters, digits, dots and dashes."
            )
        if not (model.licence or "").strip():
            yield f"{path}: names no licence of the weights; say it, as 'CC-BY-4.0' or 'none'."
        if not _HASH.fullmatch(model.hash):
            yield f"{path}: its 'hash' is no hash of weights (16 to 64 hex digits)."
        yield from _text_faults(path, model.model_dump(mode="json"))
    results = 0
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink():
            yield f"{entry}: is a link, which a results repository does not have."
        elif entry.is_dir():
            results += 1
            yield from _result_faults(entry, model, report)
        elif entry.name != MODEL:
            yield f"{entry}: is none of a model's files ({MODEL} and a folder a card); remove it."
    if not results:
        yield f"{folder}: holds no result; a folder a card, as 'bench pack' writes them."
    report.results += results


# -------------------------------------------------------------------------- one result


def _result_faults(folder: Path, model: ModelRecord | None, report: Report) -> Iterator[str]:
    path = folder / RECORD
    yield from _strangers(folder)
    try:
        record = read_record(folder)
    except UserError as error:
        yield str(error)
        return
    card = packaged_cards().get(record.card.name)
    yield from _card_faults(path, record, card)
    if folder.name != f"{record.card.name.replace('/', '.')}@{record.card.version}":
        named = f"{record.card.name}@{record.card.version}"
        yield f"{path}: is of {named}, and the folder is another card's."
    if model is not None and record.model_hash != model.hash:
        yield f"{path}: is of the model {record.model_hash}, and {MODEL} names {model.hash}."
    if not record.command.strip():
        yield f"{path}: has no command; say how the result can be repeated."
    yield from _count_faults(path, record)
    yield from _text_faults(path, record.model_dump(mode="json"))
    try:
        results = read_results(folder / "results.json")
    except UserError as error:
        yield str(error)
        return
    yield from _results_faults(folder / "results.json", record, results)
    yield from _item_faults(folder, record, results, report)


def _strangers(folder: Path) -> Iterator[str]:
    """Files that a result does not have."""
    names = {f"{items.file}{end}" for items in ITEMS.values() for end in ("", f".{RESAMPLED}")}
    for entry in sorted(folder.rglob("*")):
        place = entry.relative_to(folder).as_posix()
        known = {RECORD, "results.json", FOLDER} | {f"{FOLDER}/{name}.parquet" for name in names}
        if entry.is_symlink():
            yield f"{entry}: is a link, which a results repository does not have."
        elif place not in known:
            yield (
                f"{entry}: is none of a result's files ({RECORD}, results.json, {FOLDER}/); pack "
                "the results, which leaves it out."
            )


def _card_faults(path: Path, record: Record, card: Card | None) -> Iterator[str]:
    named = record.card
    if card is None:
        known = did_you_mean(named.name, packaged_cards())
        yield f"{path}: there is no task card '{named.name}'{known}; 'bench list' shows them."
    elif named.version != card.version:
        yield (
            f"{path}: is of version {named.version} of the card '{named.name}', which is at version"
            f" {card.version}; run 'bench' again."
        )
    elif named.hash != card.content_hash:
        yield (
            f"{path}: the card '{card.full_name}' was another there ({named.hash}, not "
            f"{card.content_hash}); run 'bench' with the card as it is published."
        )
    else:
        if record.preset != card.preset:
            yield f"{path}: was scored by '{record.preset}', and the card asks for '{card.preset}'."
        for key in card.metrics:
            if key not in record.metrics and not record.reasons.get(key):
                yield f"{path}: has neither '{key}' of the card nor a reason why not."
        for key in record.metrics:
            if key not in card.metrics:
                yield f"{path}: has the metric '{key}', which is none of the card's."
        wanted = card.data.list.images
        if wanted is not None and record.judged.wanted != wanted:
            yield f"{path}: says that the card has {record.judged.wanted} images; it has {wanted}."


def _count_faults(path: Path, record: Record) -> Iterator[str]:
    judged = record.judged
    wanted = judged.found + judged.missing if judged.wanted is None else judged.wanted
    if judged.found + judged.missing != wanted:
        yield f"{path}: found {judged.found} and missing {judged.missing} do not make {wanted}."
    if (judged.missing > 0.01 * wanted) != (record.status == "incomplete"):
        yield (
            f"{path}: is called {record.status} with {judged.missing} of {wanted} images missing;"
            " more than 1% is incomplete."
        )
    for name, value in (("set_hash", judged.set_hash), ("list_hash", judged.list_hash)):
        if not _HASH.fullmatch(value):
            yield f"{path}: its '{name}' is no hash (16 to 64 hex digits)."
    for key, figure in record.metrics.items():
        if figure.low is not None and figure.high is not None and figure.low > figure.high:
            yield f"{path}: the interval of '{key}' begins above its end."


def _text_faults(path: Path, content: Any, place: str = "") -> Iterator[str]:
    """Paths of somebody's disk, and texts that are too long to be anything but a report's."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            where = f"{place}.{key}" if place else str(key)
            yield from _text_faults(path, str(key), where)
            yield from _text_faults(path, value, where)
    elif isinstance(content, list | tuple):
        for value in content:
            yield from _text_faults(path, value, place)
    elif isinstance(content, str):
        if _PATH.search(content):
            yield f"{path}: '{place[:80]}' holds a path of somebody's disk; pack the results."
        if len(content) > _LONGEST:
            yield f"{path}: '{place[:80]}' is a text of {len(content)} letters; pack the results."


def _results_faults(path: Path, record: Record, results: Mapping[str, Any]) -> Iterator[str]:
    extra = [key for key in results if key not in KEPT]
    if extra:
        yield f"{path}: holds '{extra[0]}', which a shared copy does not have; pack the results."
    yield from _text_faults(path, {key: results[key] for key in results if key in KEPT})
    for name, ours in (("model_hash", record.model_hash), ("data_hash", record.judged.set_hash)):
        if results.get(name) != ours:
            yield f"{path}: its '{name}' is another than {RECORD} has."
    for key, figure in record.metrics.items():
        value = value_at(results, key)
        if not isinstance(value, int | float) or abs(value - figure.value) > TOLERANCE:
            yield f"{path}: has {value} for '{key}', and {RECORD} {figure.value}."


# ------------------------------------------------------------------------------- items


def _item_faults(
    folder: Path, record: Record, results: Mapping[str, Any], report: Report
) -> Iterator[str]:
    protocols = {key.partition(".")[0] for key in record.metrics}
    computed = by_protocol(tuple(record.metrics))
    for key in record.metrics:
        if not any(key in keys for keys in computed.values()):
            report.take("such metrics do not follow from the items")
    for protocol in sorted(protocols & ITEMS.keys()):
        path = item_file(folder, protocol)
        try:
            table = read_items(path)
        except UserError as error:
            yield str(error)
            continue
        faults = list(_table_faults(path, table))
        yield from faults
        if not faults:
            keys = computed.get(protocol, [])
            yield from _figure_faults(folder, protocol, table, record, results, keys, report)


def _table_faults(path: Path, table: pd.DataFrame) -> Iterator[str]:
    for name in map(str, table.columns):
        column = table[name]
        if name in ("item", "patient"):
            bad = next((row for row, v in enumerate(column) if not _digest(v)), None)
            if bad is not None:
                yield (
                    f"{path}: row {bad} of the column '{name}' is no hashed id (16 hex digits); "
                    "raw ids must not be shared."
                )
        elif not (pd.api.types.is_numeric_dtype(column) or pd.api.types.is_bool_dtype(column)):
            yield f"{path}: the column '{name[:80]}' holds no numbers; pack the results."
        elif len(name) > 100 or _PATH.search(name):
            yield f"{path}: the column '{name[:80]}' is named by a text or a path."


def _digest(value: object) -> bool:
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def _figure_faults(
    folder: Path,
    protocol: str,
    table: pd.DataFrame,
    record: Record,
    results: Mapping[str, Any],
    keys: list[str],
    report: Report,
) -> Iterator[str]:
    """Figures that the items do not give."""
    path = item_file(folder, protocol)
    withheld = not has_truth(table, protocol)
    given: dict[str, float] = {}
    if withheld:
        path = resampled_file(folder, protocol)
        if path.is_file():
            try:
                resampled = read_resampled(path, table["patient"].nunique())
            except UserError as error:
                yield str(error)
                return
            given = {name: one.value for name, one in resampled.items()}
    else:
        try:
            statistics = ITEMS[protocol].statistics(results.get(protocol) or {}, table)
            found = statistics(np.ones((1, len(table))))
        except (KeyError, ValueError, TypeError, IndexError) as error:
            yield f"{path}: its metrics cannot be computed ({type(error).__name__}: {error})."
            return
        given = {name: float(values[0]) for name, values in found.items()}
    for key in keys:
        name, value = KNOWN[key].name, record.metrics[key].value
        if name not in given:
            report.take("the labels are withheld" if withheld else "the items do not give them")
        elif not abs(given[name] - value) <= TOLERANCE:
            yield f"{path}: gives {given[name]:.9g} for '{key}', and {RECORD} says {value:.9g}."
        elif withheld:
            report.take("the labels are withheld, and the resamples agree")
        else:
            report.recomputed += 1
