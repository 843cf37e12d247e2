"""Run a grid file: what the verb ``experiment`` does."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from medclip_debias.errors import UserError, counted
from medclip_debias.experiments.experiment import Cell
from medclip_debias.experiments.grid import read_grid
from medclip_debias.experiments.runner import Progress, plan, prediction, run_experiment
from medclip_debias.experiments.trainings import Trainings
from medclip_debias.files import atomic_folder, check_out, read_json, write_json, write_text
from medclip_debias.reporting.tables import latex

FOLDER = Path("runs/experiments")


def run_grid(
    path: Path,
    words: Sequence[str] = (),
    *,
    out: Path | None = None,
    workers: int = 1,
    cluster: str | None = None,
    planned: bool = False,
    others: Sequence[Path] = (),
    progress: Progress | None = None,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Measure every cell of a grid that is not measured yet, then compare them all.

    Args:
        path: grid file.
        words: ``key=value`` over it.
        out: folder; default ``runs/experiments/NAME``. Beside what `run_experiment` writes it gets
            ``runs/``, a run folder for each cell with its ``run.yaml``, and ``tables.tex``.
        workers: cells trained side by side.
        cluster: where cells are trained instead of here: the address of a Dask scheduler, or a
            file of Slurm jobs (`medclip_debias.data.executor.map_pieces`).
        planned: only predict, and write every ``run.yaml``: a cell may then be trained by
            ``train`` on another machine of the same disk, and is evaluated here afterwards.
        others: folders of other grids, whose cells are taken where they are the same.
        progress: called with cells done and cells to do; first those that are copied.
        say: called with sentences, as the predicted time.

    Returns:
        The content of ``results.json`` and the places of the ``page`` and its ``html``; for
        ``planned`` the numbers
        of the plan.
    """
    from medclip_debias.training.distributed import Place

    if Place.from_environment().world > 1:
        raise UserError(
            "'experiment' runs in one process; to train cells with several, write their settings "
            "with --plan, start 'train' on each run.yaml, then run 'experiment' again."
        )
    grid = read_grid(path, words)
    folder = out or FOLDER / grid.name
    check_out(folder)
    experiment = Trainings(grid, folder / "runs")
    lost = 0
    for cell in experiment.cells():  # what was noted of cells whose evaluation is gone
        noted = folder / "cells" / f"{experiment.key(cell)}.json"
        if noted.is_file() and not (experiment.evaluated(cell) / "results.json").is_file():
            noted.unlink()
            lost += 1
    if lost and say:
        say(f"{folder}: {counted(lost, 'cell')} without their evaluation, measured again.")
    for other in others:
        taken = reuse(experiment, folder, other, progress)
        if say:
            say(taken)
    ahead = plan(experiment, folder, workers)
    for number in ahead.missing:
        settings = experiment.run_settings(ahead.cells[number])
        content = yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False)
        write_text(settings.out / "run.yaml", content)
    if planned:
        if say:
            say(prediction(experiment, ahead))
        runs = [str(experiment.folder(ahead.cells[n]) / "run.yaml") for n in ahead.missing]
        return {
            "cells": len(ahead.cells),
            "missing": len(ahead.missing),
            "seconds": ahead.seconds,
            "runs": runs,
        }
    results = run_experiment(
        experiment,
        folder,
        workers=workers,
        progress=progress,
        say=say,
        ahead=ahead,
        cluster=cluster,
    )
    write_text(folder / "tables.tex", "\n".join(map(latex, experiment.tables)))
    return results | {"page": str(folder / "page.md"), "html": str(folder / "page.html")}


# ------------------------------------------------------------- cells that another grid measured

BEGUN = ("checkpoints", "model")


def reuse(
    experiment: Trainings, folder: Path, other: Path, progress: Progress | None = None
) -> str:
    """Copy the cells of another grid that are missing here, with their run folders.

    A cell is named by what its result depends on, so that one of another name is the same one. It
    was perhaps measured on another machine; its file says where it comes from.
    """
    if not (other / "cells").is_dir():
        raise UserError(f"{other}: holds no cells; give a folder of 'experiment' in --reuse.")
    there = Trainings(experiment.settings, other / "runs")
    taken: Counter[str] = Counter()
    notes = {f"{experiment.key(cell)}.json": cell for cell in experiment.cells()}
    known = [n for n in notes if (other / "cells" / n).is_file()]
    missing = [n for n in known if not (folder / "cells" / n).exists()]
    for done, name in enumerate(missing, 1):
        note = other / "cells" / name
        taken[_take(experiment, there, notes[name], note, folder / "cells")] += 1
        if progress is not None:
            progress(done, len(missing))
    sentence = f"{other}: {counted(taken['cells'], 'cell')} taken from there"
    if lost := taken["without_evaluation"]:
        sentence += f"; {lost} have lost their evaluation and are measured here"
    if taken["begun"]:
        sentence += f"; {taken['begun']} were started here before and continue here"
    return f"{sentence}."


def _take(experiment: Trainings, there: Trainings, cell: Cell, note: Path, cells: Path) -> str:
    """Copy one cell, or say why not."""
    remedy = "give a complete folder in --reuse, or leave it out"
    content = read_json(note, remedy, keys=("cell", "values", "seconds"))
    if not isinstance(content["values"], dict):
        raise UserError(f"{note}: 'values' is not a JSON object; {remedy}.")
    if not (there.evaluated(cell) / "results.json").is_file():
        return "without_evaluation"
    place = experiment.folder(cell)
    if any((place / name).exists() for name in BEGUN):
        return "begun"
    try:
        with atomic_folder(place) as temporary:
            shutil.copytree(there.folder(cell), temporary, dirs_exist_ok=True)
    except (OSError, shutil.Error) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise UserError(
            f"{there.folder(cell)}: cannot be copied ({why}); fix that, or leave "
            "the grid out of --reuse."
        ) from error
    run = experiment.run_settings(cell).model_dump(mode="json")
    write_text(place / "run.yaml", yaml.safe_dump(run, sort_keys=False))
    values = content["values"] | {"folder": "/".join(experiment.evaluated(cell).parts[-2:])}
    origin = {"taken_from": str(note.parent.parent)}
    write_json(cells / note.name, content | {"cell": dict(cell), "values": values} | origin)
    return "cells"
