"""Read the files of a run's folder, which may come from somebody else: no link is followed."""

from __future__ import annotations

import base64
import io
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from pydantic import BaseModel, Field, computed_field

from medclip_debias.config import validate
from medclip_debias.errors import ReportedWarning, UserError
from medclip_debias.evaluation.table import EXAMPLES, Results, read_results
from medclip_debias.files import read_json, read_text
from medclip_debias.reporting.content import at
from medclip_debias.settings_files import load_yaml
from medclip_debias.training.folder import deciding

_LARGEST = 16 << 20
_PNG = b"\x89PNG\r\n\x1a\n"
_AGAIN = "run 'evaluate' again"


class _Heatmap(BaseModel):
    file: str = ""
    text: str = ""
    category: str | None = None
    metric: str = ""
    case: str = ""
    cnr_signed: float | None = None
    miou: float | None = None
    pointing_game: float | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def inside(self) -> bool | None:
        """Whether the highest score lies in a true box."""
        return None if self.pointing_game is None else self.pointing_game >= 0.5


class _Heatmaps(BaseModel):
    choice: str = ""
    scale: str = "Each picture has its own colour scale."
    items: list[_Heatmap] = []
    cases: list[_Heatmap] = []


class _Query(BaseModel):
    file: str | None = None
    case: str = ""
    own: str = ""
    text: str = ""
    rank: float = 0
    score: float = 0
    candidates: int = 0
    right: int = 0
    answers: list[_Query] = []


class _Examples(BaseModel):
    choice: str = ""
    images: list[_Query] = Field([], alias="image_to_sentence")
    sentences: list[_Query] = Field([], alias="sentence_to_image")


def read_run(run: Path) -> dict[str, Any]:
    """Read what is there of a run's settings, tables, results, heatmaps and examples."""
    if not run.is_dir():
        what = "is a file, not a folder" if run.exists() else "there is no such folder"
        raise UserError(f"{run}: {what}; give the folder that 'train' wrote.")
    settings, results = run / "settings.yaml", run / "results.json"
    if not settings.is_file() and not results.is_file():
        raise UserError(
            f"{run}: is not a run folder (no settings.yaml or results.json); give the "
            "folder that 'train' or 'evaluate' wrote."
        )
    for path in (settings, results, run / "metrics.csv", run / "validation.csv"):
        check_own(path)
    content, text = {}, ""
    if settings.is_file():
        content = load_yaml(settings)
        text = read_text(settings, "copy the run again", limit=_LARGEST, folder=run)
        if "provenance" not in content:  # what `train` writes last
            _warn(f"{settings}: is incomplete; the report shows what is there.")
    measured = read_results(results) if results.is_file() else Results()
    trained = at(measured, "model", "provenance")
    if content and isinstance(trained, dict) and "train" in trained:
        # Those of an earlier training stay in the folder where a run starts over.
        before = deciding({key: trained.get(key) for key in content})
        changed = [key for key, value in deciding(content).items() if before.get(key) != value]
        if changed:
            measured["notes"] = [
                f"The results are of a model that was trained otherwise ({', '.join(changed)}) than"
                f" this run; {_AGAIN}.",
                *measured.get("notes", ()),
            ]
    return {
        "settings": content,
        "settings_text": text,
        "metrics": read_metrics(run / "metrics.csv"),
        "validation": read_metrics(run / "validation.csv"),
        "results": measured,
        "heatmaps": read_heatmaps(run / "heatmaps"),
        "retrieval": _read_pictures(run / EXAMPLES, _Examples),
    }


def read_metrics(path: Path) -> dict[str, list[float | None]]:
    """Columns of ``metrics.csv``, None where undefined; a last row that was cut off is skipped."""
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        rows = text[: text.rfind("\n") + 1]
        table = pd.read_csv(io.StringIO(rows)) if rows.strip() else pd.DataFrame()
    except (UnicodeDecodeError, pd.errors.ParserError) as error:
        raise UserError(
            f"{path}: cannot be read as a table ({type(error).__name__}); move it away, and the "
            "report is written without curves."
        ) from error
    if text != rows:
        _warn(f"{path}: its last row is incomplete and was skipped.")
    if table.empty:
        _warn(f"{path}: holds no rows, so the report has no curves.")
        return {}
    table = table.apply(pd.to_numeric, errors="coerce").replace([np.inf, -np.inf], np.nan)
    columns = table.astype(object).where(table.notna(), None).to_dict("list")
    return {str(name): values for name, values in columns.items()}


def read_heatmaps(folder: Path) -> dict[str, Any]:
    """The pictures of ``heatmaps/index.json`` as data addresses; empty where there are none."""
    return _read_pictures(folder, _Heatmaps)


def check_own(path: Path) -> None:
    """Refuse a link: a report of somebody else's run must not show files of one's own."""
    if path.is_symlink():
        raise UserError(
            f"{path}: is a link to another file, which a run folder does not have; put the file"
            " itself there if you trust it."
        )


def _warn(sentence: str) -> None:
    warnings.warn(ReportedWarning(sentence), stacklevel=3)


def _read_pictures(folder: Path, model: type[BaseModel]) -> dict[str, Any]:
    """A folder's ``index.json``, each ``file`` with its ``picture``; empty where there is none."""
    path = folder / "index.json"
    if not path.is_file():
        return {}
    check_own(folder)
    check_own(path)
    index = validate(model, read_json(path, _AGAIN, folder=folder), str(path)).model_dump()

    def fill(entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            entry["picture"] = "" if entry["file"] is None else _picture(folder, entry["file"])
            fill(entry.get("answers", []))

    for entries in index.values():
        if isinstance(entries, list):
            fill(entries)
    return index


def _picture(folder: Path, file: str) -> str:
    path = folder / Path(file).name
    if not path.is_file():
        raise UserError(f"{path}: this picture is missing; {_AGAIN}.")
    check_own(path)
    content = path.read_bytes()
    if not content.startswith(_PNG):
        raise UserError(f"{path}: is not a PNG picture; {_AGAIN}.")
    return f"data:image/png;base64,{base64.b64encode(content).decode('ascii')}"
