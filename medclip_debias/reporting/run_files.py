"""Read the files of a run's folder, which may come from somebody else: no link is followed."""

from __future__ import annotations

import csv
import math
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from medclip_debias.errors import ReportedWarning, UserError, explained
from medclip_debias.evaluation.retrieval_examples import FOLDER
from medclip_debias.evaluation.table import Results, read_results
from medclip_debias.files import read_json, read_text
from medclip_debias.reporting.content import number
from medclip_debias.reporting.plots import data_address
from medclip_debias.settings_files import load_yaml

_LARGEST = 16 << 20
_PNG = b"\x89PNG\r\n\x1a\n"


def read_run(run: Path) -> dict[str, Any]:
    """Read what is there of a run's settings, tables, results, heatmaps and examples.

    Raises:
        UserError: the folder is missing or no run, or one of its files is damaged.
    """
    if not run.is_dir():
        raise UserError(f"{run}: there is no such folder; give the folder that 'train' wrote.")
    settings, results = run / "settings.yaml", run / "results.json"
    if not settings.is_file() and not results.is_file():
        raise UserError(
            f"{run}: is not a run folder (no settings.yaml or results.json); give the "
            "folder that 'train' or 'evaluate' wrote."
        )
    for path in (settings, results, run / "metrics.csv", run / "validation.csv"):
        check_own(path)
    chosen, text = _settings(settings) if settings.is_file() else ({}, "")
    return {
        "settings": chosen,
        "settings_text": text,
        "metrics": read_metrics(run / "metrics.csv"),
        "validation": read_metrics(run / "validation.csv"),
        "results": read_results(results) if results.is_file() else Results(),
        "heatmaps": read_heatmaps(run / "heatmaps"),
        "retrieval": read_retrieval(run / FOLDER),
    }


def _settings(path: Path) -> tuple[dict[str, Any], str]:
    """A run's settings and their text; a warning when the file is not whole."""
    content = load_yaml(path)
    if "provenance" not in content:  # what `train` writes last
        _warn(f"{path}: is not whole; the report shows what is there.")
    return content, read_text(path, "copy the run again", limit=_LARGEST, folder=path.parent)


def read_metrics(path: Path) -> dict[str, list[float | None]]:
    """Read ``metrics.csv`` as columns; empty and undefined values are None, no file is empty.

    A last row that was cut off is left aside, with a warning.

    Raises:
        UserError: it is no table of numbers.
    """
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        rows = list(csv.DictReader(text.splitlines(), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(
            f"{path}: cannot be read as a table ({type(error).__name__}); move it away, and the "
            "report is written without curves."
        ) from error
    if text and not text.endswith("\n"):
        _warn(f"{path}: its last row is incomplete and was skipped.")
        rows = rows[:-1]
    if not rows:
        _warn(f"{path}: holds no rows, so the report has no curves.")
    names = [name for name in (rows[0] if rows else {}) if name]
    return {name: [_number(row.get(name)) for row in rows] for name in names}


def _warn(sentence: str) -> None:
    warnings.warn(ReportedWarning(sentence), stacklevel=3)


def check_own(path: Path) -> None:
    """Refuse a link: a report of somebody else's run must not show files of one's own.

    Raises:
        UserError: ``path`` is a symbolic link.
    """
    if path.is_symlink():
        raise UserError(
            f"{path}: is a link to another file, which a run folder does not have; put the file"
            " itself there if you trust it."
        )


def read_heatmaps(folder: Path) -> dict[str, Any]:
    """The pictures that ``heatmaps/index.json`` lists, with their bytes as data addresses.

    Returns:
        ``choice`` and ``scale`` (sentences), ``items``, whose ``inside`` says whether the highest
        score lies in a true box, and ``cases``: the best, median and worst of each metric. Empty
        where there is none.
    """
    index = _index(folder)
    if not index:
        return {}

    def item(entry: Mapping[str, Any]) -> dict[str, Any]:
        with _numbers(folder):
            facts = [
                f"{title} {number(entry.get(key), digits)}"
                for key, title, digits in (("cnr_signed", "signed CNR", 2), ("miou", "mIoU", 3))
            ]
            inside = entry.get("pointing_game")
            if inside is not None:
                inside = float(inside) >= 0.5
                facts.append("peak inside" if inside else "peak outside")
        return {
            "picture": _picture(folder, entry),
            "text": str(entry.get("text", "")),
            "category": str(entry.get("category", "")),
            "facts": ", ".join(facts),
            "inside": inside,
        }

    cases = [
        item(entry) | {"metric": str(entry.get("metric")), "case": str(entry.get("case"))}
        for entry in _entries(folder, index, "cases")
    ]
    return {
        "choice": str(index.get("choice", "")),
        "scale": str(index.get("scale", "Each picture has its own colour scale.")),
        "items": [item(entry) for entry in _entries(folder, index, "items")],
        "cases": cases,
    }


def read_retrieval(folder: Path) -> dict[str, Any]:
    """The examples of ``retrieval/index.json``, pictures as data addresses; empty for none."""
    index = _index(folder)
    if not index:
        return {}
    shown: dict[str, Any] = {"choice": str(index.get("choice", ""))}
    for name, key in (("images", "image_to_sentence"), ("sentences", "sentence_to_image")):
        shown[name] = [
            _query(folder, entry) | {"answers": [_query(folder, a) for a in answers]}
            for entry in _entries(folder, index, key)
            if (answers := _entries(folder, entry, "answers"))
        ]
    return shown


def _query(folder: Path, entry: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of a query or of an answer; the file may come from anybody."""
    query: dict[str, Any] = {key: str(entry.get(key, "")) for key in ("case", "own", "text")}
    with _numbers(folder):
        query |= {key: float(entry.get(key, 0)) for key in ("rank", "score")}
        query |= {key: int(entry.get(key, 0)) for key in ("candidates", "right")}
    return query | {"picture": _picture(folder, entry) if "file" in entry else ""}


def _numbers(folder: Path) -> AbstractContextManager[None]:
    """Say in which file a value is no number."""
    sentence = f"{folder / 'index.json'}: holds words where numbers belong; run 'evaluate' again"
    return explained(sentence, TypeError, ValueError, OverflowError)


def _index(folder: Path) -> dict[str, Any]:
    """Content of a folder's ``index.json``; empty where there is none."""
    if not (folder / "index.json").is_file():
        return {}
    check_own(folder)
    check_own(folder / "index.json")
    return read_json(folder / "index.json", "run 'evaluate' again", folder=folder)


def _entries(folder: Path, index: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    listed = index.get(key, [])
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise UserError(f"{folder / 'index.json'}: is no list of pictures; run 'evaluate' again.")
    return listed


def _picture(folder: Path, entry: Mapping[str, Any]) -> str:
    path = folder / Path(str(entry.get("file"))).name
    if not path.is_file():
        raise UserError(f"{path}: this picture is missing; run 'evaluate' again.")
    check_own(path)
    content = path.read_bytes()
    if not content.startswith(_PNG):
        raise UserError(f"{path}: is no PNG picture; run 'evaluate' again.")
    return data_address(content, "image/png")


def _number(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None
