"""Cells that another grid has measured already: copied, not measured again."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import yaml

from medclip_debias.errors import UserError
from medclip_debias.experiments.experiment import Cell
from medclip_debias.experiments.runner import Progress
from medclip_debias.experiments.trainings import Trainings
from medclip_debias.files import atomic_folder, read_json, write_json, write_text

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
    wanted = [n for n in known if not (folder / "cells" / n).exists()]
    for done, name in enumerate(wanted, 1):
        note = other / "cells" / name
        taken[_take(experiment, there, notes[name], note, folder / "cells")] += 1
        if progress is not None:
            progress(done, len(wanted))
    told = f"{other}: {taken['cells']} cells taken from there"
    if taken["without_evaluation"]:
        told += f"; {taken['without_evaluation']} have lost their evaluation and are measured here"
    if taken["begun"]:
        told += f"; {taken['begun']} have begun here already and go on here"
    return f"{told}."


def _take(experiment: Trainings, there: Trainings, cell: Cell, note: Path, cells: Path) -> str:
    """Copy one cell, or say why not."""
    remedy = "give a whole folder in --reuse, or leave it out"
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
            f"{there.folder(cell)}: cannot be copied ({why}); mend that, or leave "
            "the grid out of --reuse."
        ) from error
    run = experiment.run_settings(cell).model_dump(mode="json")
    write_text(place / "run.yaml", yaml.safe_dump(run, sort_keys=False))
    values = content["values"] | {"folder": "/".join(experiment.evaluated(cell).parts[-2:])}
    origin = {"taken_from": str(note.parent.parent)}
    write_json(cells / note.name, content | {"cell": dict(cell), "values": values} | origin)
    return "cells"
