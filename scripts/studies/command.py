"""Studies by name: their titles, and a run with settings from words or a file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medclip_debias.config import Settings, apply_overrides, load_yaml, merge, validate
from medclip_debias.experiments.publish import publish
from medclip_debias.experiments.runner import run_experiment
from studies.study import STUDIES, find_study

__all__ = ["publish", "run_named", "run_study", "titles"]


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
        base, where = merge(base, load_yaml(config)), str(config)
    settings = validate(kind.settings_class, apply_overrides(base, words), where)
    return run_study(name, out, settings=settings, **how)


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
