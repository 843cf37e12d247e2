"""Run a study: measure what is not measured yet, then write results, figure and page."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from medclip_debias import __version__
from medclip_debias.config import (
    Settings,
    apply_overrides,
    json_hash,
    load_yaml,
    merge,
    validate,
)
from medclip_debias.data.parallel import cpus, ordered
from medclip_debias.errors import UserError, explained
from medclip_debias.files import atomic_file, write_json, write_text
from medclip_debias.studies.page import page, tables
from medclip_debias.studies.study import Cell, Row, Study, find_study, studies

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Plan:
    """What a run would do.

    Attributes:
        cells: the whole grid.
        missing: places in ``cells`` of those not measured yet.
        inputs: of all that the missing ones share and that is not there yet, one cell each.
        seconds: predicted for inputs, missing ones and the cells that follow from them, with
            ``workers`` processes.
        workers: processes.
    """

    cells: list[dict[str, Any]]
    missing: list[int]
    inputs: list[Cell]
    seconds: float
    workers: int


def plan(
    study: Study,
    out: Path,
    workers: int | None = None,
    cells: list[dict[str, Any]] | None = None,
) -> Plan:
    """Look at what ``out`` holds already, and predict how long the rest takes.

    Args:
        study: with its settings.
        out: its folder.
        workers: processes; default as many as are worth it.
        cells: to look at; by default the study's own, before any follow-up.
    """
    later = study.follow_up_seconds() if cells is None else 0.0
    cells = study.cells() if cells is None else cells
    missing = [n for n, cell in enumerate(cells) if not _path(study, out, cell).is_file()]
    each = [study.seconds(cells[n]) for n in missing]
    total = sum(each) + (later if missing else 0.0)
    inputs = _inputs_to_make(study, [cells[n] for n in missing])
    before = [study.shared_seconds(study.shared(cell) or {}) for cell in inputs]
    # A process costs its imports; short studies are faster in this one.
    chosen = workers or (min(cpus(), len(missing)) if total + sum(before) > 60 else 1)
    chosen = max(1, chosen)
    seconds = max([sum(before) / chosen, *before]) + max([total / chosen, *each])
    return Plan(cells, missing, inputs, seconds, chosen)


def _inputs_to_make(study: Study, cells: Sequence[Cell]) -> list[Cell]:
    """One cell for each thing that ``cells`` share and that is not there."""
    if study.inputs is None:
        return []
    found: dict[Path, Cell] = {}
    for cell in cells:
        wanted = study.shared(cell)
        if wanted is not None and not (folder := study.shared_path(wanted)).is_dir():
            found.setdefault(folder, cell)
    return list(found.values())


def titles() -> dict[str, str]:
    """Title of every study by name."""
    return {name: kind.title for name, kind in studies().items()}


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
    name: str,
    out: Path,
    *,
    settings: Settings | None = None,
    workers: int | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Run the study ``name`` in the folder ``out``; a run that was stopped goes on there.

    Args:
        name: of a study.
        out: folder; gets ``cells/``, ``results.json``, ``settings.yaml`` (for ``--config``),
            ``figure.png``, ``figure.svg``, ``page.md`` and, for the index, perhaps
            ``overview.md``.
        settings: other than the study's own.
        workers: processes; default as many cores as are worth it.
        progress: called with what is done and what there is to do, of inputs and cells.
        say: called with one line: the predicted time.

    Returns:
        The content of ``results.json``.

    Raises:
        UserError: no such study, or ``out`` cannot be used.
    """
    kind = find_study(name)
    study = kind(settings, out.parent / "inputs")
    if out.is_file():
        raise UserError(f"{out}: is a file; give a folder for the study.")
    ahead = plan(study, out, workers)
    if say:
        done = len(ahead.cells) - len(ahead.missing)
        first = f"{len(ahead.inputs)} inputs to make first, " if ahead.inputs else ""
        say(
            f"{name}: {len(ahead.cells)} cells, {done} measured already, {first}about "
            f"{_duration(ahead.seconds)} for the rest with {ahead.workers} processes"
        )
    joined = _measured(study, out, ahead, progress)
    followers = study.follow_up([values for values, _ in joined])
    if followers:
        after = plan(study, out, workers, followers)
        if say:
            say(f"{name}: {len(followers)} cells follow, about {_duration(after.seconds)}")
        joined += _measured(study, out, after, progress)
    rows = [values for values, _ in joined]
    found = study.summary(rows)
    results = {
        "study": name,
        "version": kind.version,
        "medclip_debias": __version__,
        "settings": study.settings.model_dump(mode="json"),
        "findings": found.findings,
        "figures": found.figures,
        "cells": len(rows),
        "seconds": sum(seconds for _, seconds in joined),
        "rows": rows,
    }
    _draw(study, rows, out)
    write_text(out / "page.md", page(study, found, results))
    if found.overview:
        write_text(out / "overview.md", "\n".join(tables(found.overview)))
    write_text(out / "settings.yaml", yaml.safe_dump(results["settings"], sort_keys=False))
    write_json(out / "results.json", results)
    return results


def _measured(
    study: Study, out: Path, ahead: Plan, progress: Progress | None
) -> list[tuple[Row, float]]:
    """Measure what is missing of a plan; every cell joined with its values, and its seconds."""
    missing = [ahead.cells[n] for n in ahead.missing]
    inputs = str(study.inputs)
    sharing = [(study.name, cell, inputs) for cell in ahead.inputs]
    jobs = [(study.name, cell, str(_path(study, out, cell)), inputs) for cell in missing]
    work = chain(
        ordered(_make_shared, sharing, min(ahead.workers, max(1, len(sharing)))),
        ordered(_measure, jobs, ahead.workers),
    )
    for done, _ in enumerate(work, start=1):
        if progress:
            progress(done, len(sharing) + len(jobs))
    rows = [_read(_path(study, out, cell)) for cell in ahead.cells]
    return [
        (_joined(cell, row["values"]), row["seconds"])
        for cell, row in zip(ahead.cells, rows, strict=True)
    ]


def _joined(cell: Cell, values: Row) -> Row:
    """What a cell is and what it gave; a value that has the name of a setting makes room."""
    named = {f"measured {name}" if name in cell else name: v for name, v in values.items()}
    return dict(cell) | named


def _make_shared(job: tuple[str, Cell, str]) -> None:
    name, cell, inputs = job
    find_study(name)(inputs=Path(inputs)).shared_folder(cell)


def _measure(job: tuple[str, Cell, str, str]) -> None:
    name, cell, path, inputs = job
    began = time.perf_counter()
    values = find_study(name)(inputs=Path(inputs)).measure(cell)
    seconds = time.perf_counter() - began
    write_json(Path(path), {"cell": dict(cell), "values": values, "seconds": seconds})


def _path(study: Study, out: Path, cell: Cell) -> Path:
    return out / "cells" / f"{json_hash([study.name, study.version, dict(cell)])}.json"


def _read(path: Path) -> Row:
    with explained(f"{path}: cannot be read; remove it to measure it again", Exception):
        row: Row = json.loads(path.read_text(encoding="utf-8"))
        if not {"cell", "values", "seconds"} <= set(row):
            raise ValueError
    return row


def _draw(study: Study, rows: list[Row], out: Path) -> None:
    import matplotlib as mpl

    figure = study.figure(rows)
    # Without a date, and with a fixed salt, equal figures give equal bytes.
    with mpl.rc_context({"svg.hashsalt": "medclip-debias"}):
        for suffix in ("svg", "png"):
            plain = {"Date": None} if suffix == "svg" else {"Software": None}
            with atomic_file(out / f"figure.{suffix}") as temporary:
                figure.savefig(temporary, format=suffix, dpi=160, metadata=plain)


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
