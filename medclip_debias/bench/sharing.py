"""What must not be shared stands in no folder of results: raw ids, report text, paths, other files.

Links are named and never opened. What no check can see stands in docs/benchmark.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from medclip_debias.bench.card import packaged_cards
from medclip_debias.bench.record import (
    MODEL,
    NAME,
    RECORD,
    RESULTS,
    ModelRecord,
    Record,
    read_model,
    read_record,
)
from medclip_debias.bench.results import Result
from medclip_debias.errors import UserError, did_you_mean
from medclip_debias.evaluation.item_tables import FOLDER, ITEMS

_WORDS = ("category", "finding", "kind", "state")
"""Columns of items that hold names of findings, and the longest such name."""
_LONGEST_NAME = 100
_DIGEST = re.compile(r"[0-9a-f]{16}")
_HASH = re.compile(r"[0-9a-f]{16,64}")
_PATH = re.compile(r"""(?:^|[\s"'=(,])(?:/[\w.-]+|~[/\\]|[A-Za-z]:[\\/]|\\\\|file:)""")
_LONGEST = 600
"""Letters of a text that is no report: the longest note of this program is shorter."""


def link_fault(path: Path) -> str:
    """What is said of a link."""
    return f"{path}: is a link, which a folder of results does not have."


def model_faults(folder: Path, results: list[Result]) -> Iterator[str]:
    """Faults of a model's files; what can be read goes into ``results``."""
    path = folder / MODEL
    model: ModelRecord | None = None
    if not path.is_symlink():  # named below
        try:
            model = read_model(folder)
        except UserError as error:
            yield str(error)
    if model is not None:
        if model.name != folder.name or not NAME.fullmatch(model.name):
            yield (
                f"{path}: names the model '{model.name[:100]}'; the name must be the folder's, of "
                "letters, digits, dots and dashes."
            )
        if not (model.licence or "").strip():
            yield (
                f"{path}: names no licence of the weights; write it into 'licence', as"
                " 'CC-BY-4.0' or 'weights not published'."
            )
        if not _HASH.fullmatch(model.hash):
            yield f"{path}: its 'hash' is not a hash of weights (16 to 64 hex digits)."
        yield from _text_faults(path, model.model_dump(mode="json"))
    before = len(results)
    for entry in sorted(folder.iterdir()):
        if entry.is_symlink():
            yield link_fault(entry)
        elif entry.is_dir():
            yield from _result_faults(entry, model, results)
        elif entry.name != MODEL:
            yield (
                f"{entry}: is not a file of a model's results ({MODEL} and one folder per card);"
                " remove it."
            )
    if len(results) == before and not any(path.is_dir() for path in folder.iterdir()):
        yield f"{folder}: holds no result; it needs one folder per card, as 'bench' writes them."


def _result_faults(folder: Path, model: ModelRecord | None, results: list[Result]) -> Iterator[str]:
    known = {RECORD, RESULTS, FOLDER}
    known |= {f"{FOLDER}/{items.file}.parquet" for items in ITEMS.values()}
    linked = False
    for entry in sorted(folder.rglob("*")):
        place = entry.relative_to(folder).as_posix()
        if entry.is_symlink():
            linked |= place in known
            yield link_fault(entry)
        elif place not in known:
            yield (
                f"{entry}: is not a file of a result ({RECORD}, {RESULTS}, {FOLDER}/); remove it."
            )
    if linked:
        return
    path = folder / RECORD
    try:
        record = read_record(folder)
        result = Result(folder.parent.name, folder, record, folder.parent.parent)
        content = result.content
    except UserError as error:
        yield str(error)
        return
    yield from _card_faults(path, record)
    if folder.name != record.card.folder:
        yield f"{path}: is of {record.card.full_name}, but its folder belongs to another card."
    if model is not None and record.model_hash != model.hash:
        yield f"{path}: is of the model {record.model_hash}, and {MODEL} names {model.hash}."
    if not record.command.strip():
        yield f"{path}: has no command; say how the result can be repeated."
    for name in ("set_hash", "list_hash"):
        if not _HASH.fullmatch(getattr(record.judged, name)):
            yield f"{path}: its '{name}' is not a hash (16 to 64 hex digits)."
    yield from _text_faults(path, record.model_dump(mode="json"))
    yield from _text_faults(folder / RESULTS, content)
    for protocol in result.protocols:
        try:
            table = result.items(protocol)
        except UserError:  # said by `faults_of`
            continue
        yield from _column_faults(result.item_file(protocol), table)
    results.append(result)


def _card_faults(path: Path, record: Record) -> Iterator[str]:
    named = record.card
    card = packaged_cards().get(named.name)
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
                yield f"{path}: has the metric '{key}', which is not one of the card's."
        for what in ("images", "boxes"):
            wanted = getattr(card.data.list, what)
            judged = record.judged.wanted if what == "images" else record.judged.boxes_wanted
            if wanted is not None and judged != wanted:
                yield f"{path}: says that the card has {judged} {what}; it has {wanted}."


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
            yield f"{path}: '{place[:80]}' holds a path on somebody's disk; remove it."
        if len(content) > _LONGEST:
            yield f"{path}: '{place[:80]}' is a text of {len(content)} letters; remove it."


def _column_faults(path: Path, table: pd.DataFrame) -> Iterator[str]:
    """Raw ids, and words that are no names of findings."""
    for name in map(str, table.columns):
        column = table[name]
        if name in ("item", "patient"):
            digests = [isinstance(v, str) and bool(_DIGEST.fullmatch(v)) for v in column]
            if not all(digests):
                yield (
                    f"{path}: row {digests.index(False)} of the column '{name}' is not a hashed id"
                    " (16 hex digits); raw ids must not be shared."
                )
        elif len(name) > _LONGEST_NAME or _PATH.search(name):
            yield f"{path}: the column '{name[:80]}' is named by a text or a path."
        elif not (is_numeric_dtype(column) or is_bool_dtype(column)):
            longest = max((len(str(cell)) for cell in column.unique()), default=0)
            if name not in _WORDS or longest > _LONGEST_NAME:
                yield f"{path}: the column '{name[:80]}' holds no numbers; remove it."
