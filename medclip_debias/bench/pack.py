"""Make the copy of results that may be shared: figures, and scores under hashed ids.

The labels and boxes of an archive are not this program's to give away. They are left out, unless
the images are the phantom's or the archive's terms allow them, and what paired statistics need of
them, the metrics on resampled patients, is computed here and given instead.
"""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from medclip_debias.bench.pairs import (
    by_protocol,
    has_truth,
    item_file,
    resample,
    resampled_file,
    write_resampled,
)
from medclip_debias.bench.record import MODEL, RECORD, ModelRecord, write_record
from medclip_debias.bench.repository import KEPT, NAME, TOLERANCE, validate_repository
from medclip_debias.bench.results import KNOWN, Result, Results, read_results
from medclip_debias.errors import UserError
from medclip_debias.evaluation.item_metrics import ITEMS
from medclip_debias.evaluation.item_tables import FOLDER
from medclip_debias.evaluation.schema import read_results as read_results_json
from medclip_debias.files import exchange, write_json, write_text

_PLACE = re.compile(r"(^|[\s\"'=(,])((?:/|~/|[A-Za-z]:[\\/])[^\s\"'),:;]+)")
_SIDES = ("positive.", "negative.")
_HEAVY = ("reliability",)
"""Curves of classes: large, and not needed for a figure."""


def pack_results(
    folder: Path,
    out: Path,
    *,
    models: Sequence[str] | None = None,
    licence: str | None = None,
    with_labels: bool = False,
) -> list[str]:
    """Copy the results of models into a results repository; those of others in it stay.

    Args:
        folder: results of ``bench``.
        out: the repository.
        models: whose; all by default.
        licence: of the weights, for models that do not say it.
        with_labels: share labels and boxes of real archives, too.

    Returns:
        What was written and what was left out, in sentences.

    Raises:
        UserError: the results cannot be read or are not fit to be shared; nothing is written.
    """
    if out.resolve() == folder.resolve():
        raise UserError(f"{out}: is the folder of the results; give another one to --out.")
    results = read_results(folder, models=models)
    left: Counter[str] = Counter()
    packed = {
        name: model
        for name, model in results.models.items()
        if any(name in task.results for task in results.tasks)
    }
    if len(packed) < len(results.models):
        left["models without a result"] = len(results.models) - len(packed)
    for name, model in packed.items():
        if not (model.licence or licence or "").strip():
            raise UserError(
                f"{folder}: the model '{name}' names no licence of its weights; give --licence."
            )
        if not NAME.fullmatch(name):
            raise UserError(f"{folder}: the model's name '{name[:100]}' cannot be a folder's.")
    new = not out.exists()
    out.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".packing", dir=out) as place:
            temporary = Path(place)
            for name, model in packed.items():
                _pack_model(results, name, model, temporary / name, licence, with_labels, left)
            faults = validate_repository(temporary).faults
            if faults:
                raise UserError(faults[0].replace(str(temporary), str(folder)))
            for name in packed:
                exchange(temporary / name, out / name, temporary / f"{name}.old")
    finally:
        if new and not any(out.iterdir()):
            out.rmdir()
    count = sum(len(task.results) for task in results.tasks)
    return [
        f"{out}: {len(packed)} models with {count} results.",
        *(f"Left out: {what} ({number})." for what, number in left.items()),
    ]


def _pack_model(
    results: Results,
    name: str,
    model: ModelRecord,
    out: Path,
    licence: str | None,
    with_labels: bool,
    left: Counter[str],
) -> None:
    content = model.model_dump(mode="json") | {"licence": model.licence or licence}
    write_json(out / MODEL, _without_places(content, left))
    for task in results.tasks:
        result = task.results.get(name)
        if result is None:
            continue
        place = out / result.folder.name
        keep = with_labels or task.generated
        _pack_result(result, task.metrics, place, keep, left)


def _pack_result(
    result: Result, metrics: tuple[str, ...], out: Path, with_labels: bool, left: Counter[str]
) -> None:
    record = result.record
    command = shlex.join(_without_places(shlex.split(record.command), left))
    notes = tuple(_without_places(list(record.notes), left))
    reasons = _without_places(record.reasons, left)
    write_record(
        out, record.model_copy(update={"command": command, "notes": notes, "reasons": reasons})
    )
    content = read_results_json(result.folder / "results.json")
    protocols = {key.partition(".")[0] for key in metrics}
    for key in content.keys() - set(KEPT):
        left[f"'{key}' of results.json"] += 1
    for protocol in ITEMS.keys() & content.keys() - protocols:
        left[f"'{protocol}', of which the card asks for no figure"] += 1
    kept = {
        key: value
        for key, value in content.items()
        if key in KEPT and (key not in ITEMS or key in protocols)
    }
    kept = _without_places(_without_heavy(kept, left), left)
    write_text(out / "results.json", json.dumps(kept, separators=(",", ":"), allow_nan=False))
    for protocol in sorted(protocols & ITEMS.keys()):
        if item_file(result.folder, protocol).is_file():
            _pack_items(result, protocol, metrics, out, with_labels, left)
    known = {RECORD, "results.json", FOLDER}
    for entry in result.folder.iterdir():
        if entry.name not in known:
            left[f"'{entry.name}' beside the records"] += 1


def _pack_items(
    result: Result,
    protocol: str,
    metrics: tuple[str, ...],
    out: Path,
    with_labels: bool,
    left: Counter[str],
) -> None:
    table, found = resample(result, protocol)
    truth = ITEMS[protocol].truth
    target = item_file(out, protocol)
    target.parent.mkdir(parents=True, exist_ok=True)
    if truth and not with_labels and has_truth(table, protocol):
        wanted = {KNOWN[key].name for key in by_protocol(metrics).get(protocol, ())}
        chosen = {name: one for name, one in found.items() if name in wanted}
        if chosen:
            write_resampled(resampled_file(out, protocol), chosen)
        labels = [name for name in table.columns if str(name).startswith(truth)]
        left["columns of labels or boxes of a real archive"] += len(labels)
        table = table.drop(columns=labels)
        sides = [name for name in table.columns if str(name).startswith(_SIDES)]
        left["columns of one side of a class, which say nothing without labels"] += len(sides)
        table = table.drop(columns=sides)
    elif resampled_file(result.folder, protocol).is_file():
        write_resampled(resampled_file(out, protocol), found)
    words = [
        name
        for name in table.columns
        if name not in ("item", "patient") and not pd.api.types.is_numeric_dtype(table[name])
    ]
    if words:
        left["columns of words"] += len(words)
    table = table.drop(columns=words)
    table = _shorter(table, protocol, read_results_json(result.folder / "results.json"))
    table.attrs = {}
    floats = [str(name) for name in table.columns if pd.api.types.is_float_dtype(table[name])]
    table.to_parquet(
        target,
        index=False,
        compression="zstd",
        use_dictionary=[str(name) for name in table.columns if name not in floats],
        use_byte_stream_split=floats,
    )


def _shorter(table: pd.DataFrame, protocol: str, results: Mapping[str, Any]) -> pd.DataFrame:
    """The table in half the digits, where its metrics stay what they are."""
    wide = table.select_dtypes("float64").columns
    short = table.astype(dict.fromkeys(wide, "float32"))
    if not has_truth(table, protocol):
        return short
    once = np.ones((1, len(table)))
    before, after = (
        ITEMS[protocol].statistics(results.get(protocol) or {}, each)(once)
        for each in (table, short)
    )
    same = all(
        np.allclose(after[name], before[name], rtol=0, atol=TOLERANCE / 10, equal_nan=True)
        for name in before
    )
    return short if same else table


def _without_heavy(content: Any, left: Counter[str]) -> Any:
    if isinstance(content, Mapping):
        left.update(f"'{key}' of a class" for key in content if key in _HEAVY)
        return {
            key: _without_heavy(value, left) for key, value in content.items() if key not in _HEAVY
        }
    return content


def _without_places(content: Any, left: Counter[str]) -> Any:
    """The same JSON value; of a path of this machine only its last part is left."""
    if isinstance(content, Mapping):
        return {key: _without_places(value, left) for key, value in content.items()}
    if isinstance(content, list):
        return [_without_places(value, left) for value in content]
    if isinstance(content, str):

        def last(found: re.Match[str]) -> str:
            left["folders of this machine's paths"] += 1
            return found[1] + re.split(r"[\\/]", found[2].rstrip("\\/"))[-1]

        return _PLACE.sub(last, content)
    return content
