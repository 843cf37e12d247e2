"""Studies by name: their titles, and a run with settings from words or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medclip_debias.config import Settings, validate
from medclip_debias.errors import UserError
from medclip_debias.experiments.runner import rewrite, run_experiment
from medclip_debias.files import read_json
from medclip_debias.named_settings import config_file
from medclip_debias.settings_files import apply_overrides, load_yaml, merge
from studies.publish import publish
from studies.study import STUDIES, find_study

__all__ = ["publish", "rewrite_named", "run_named", "run_study", "titles"]

HINT = "give the results.json of a run of the study"


def titles() -> dict[str, str]:
    """Title of every study by name."""
    return {name: kind.title for name, kind in STUDIES.all().items()}


def run_named(
    name: str,
    out: Path,
    *,
    words: Sequence[str] = (),
    quick: bool = False,
    config: Path | None = None,
    **how: Any,
) -> dict[str, Any]:
    """`run_study` with ``key=value`` words over a file, over the full or the quick settings."""
    kind = find_study(name)
    base = (kind.quick() if quick else kind.settings_class()).model_dump(mode="json")
    where = "the command line"
    if config is not None:
        base, where = merge(base, load_yaml(config_file(config))), str(config)
    settings = validate(kind.settings_class, apply_overrides(base, words), where)
    return run_study(name, out, settings=settings, **how)


def rewrite_named(name: str, results: Path, out: Path) -> dict[str, Any]:
    """Write plot and page of a study anew in ``out`` from the cells that a run published.

    Args:
        name: of the study.
        results: its ``results.json``, as ``docs/studies/NAME.json``.
        out: folder.

    Returns:
        The content of the new ``results.json``.

    Raises:
        UserError: no such study, or the file is not of a run of it.
    """
    kind = find_study(name)
    keys = ("settings", "rows", "seconds", "version", "medclip_debias")
    found = read_json(results, HINT, keys=keys)
    if found.get("study") != name:
        raise UserError(f"{results}: holds the study '{found.get('study')}', not '{name}'; {HINT}.")
    rows, version, seconds = found["rows"], found["version"], found["seconds"]
    if not (isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)):
        raise UserError(f"{results}: 'rows' must be a list of cells; {HINT}.")
    if type(version) is not int or not isinstance(seconds, int | float):
        raise UserError(f"{results}: 'version' and 'seconds' must be numbers; {HINT}.")
    settings = validate(kind.settings_class, found["settings"], str(results))
    return rewrite(kind(settings, out.parent / "inputs"), found, out)


def run_study(
    name: str, out: Path, *, settings: Settings | None = None, **how: Any
) -> dict[str, Any]:
    """Run the study ``name`` in the folder ``out``; a run that was stopped resumes there.

    Args:
        name: of a study.
        out: folder; what studies share is kept beside it, in ``inputs``.
        settings: other than the study's own.
        **how: of `medclip_debias.experiments.runner.run_experiment`.

    Returns:
        The content of ``results.json``.

    Raises:
        UserError: no such study, or ``out`` cannot be used.
    """
    return run_experiment(find_study(name)(settings, out.parent / "inputs"), out, **how)
