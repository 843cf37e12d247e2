"""Open-i split anew, a language model for each split: sets, language models, claims, then a grid.

    python scripts/openi_splits.py FOLDER

FOLDER is Open-i's (docs/openi.md). Each split of the grid gets a prepared set, a language model
that has read its training reports alone, and claims; then the grid of trainings is measured. Run
again, it goes on where it stopped.
"""

from __future__ import annotations

import sys
from pathlib import Path

from commands import run_script
from medclip_debias.cli import run
from medclip_debias.cli.stages import Stage, run_stages
from medclip_debias.data.text.claims.table import FILE as CLAIMS
from medclip_debias.experiments.grid import read_grid
from openi import LANGUAGE_MODEL

GRID = "experiments/positives_openi_own_language_models"


def stages(data: Path, grid: str) -> list[Stage]:
    """Return every stage; the seed of a split is the number at the end of its set's name."""
    settings = read_grid(grid)
    size = settings.base["preprocessing"]["prepare"]["size"]
    found = []
    for change in settings.settings.values():
        prepared, lm = Path(change["prepared"]), Path(change["model"]["text"]["folder"])
        seed = prepared.name.rpartition("_")[2]
        how = ["--kind", "openi", "--size", f"{size}", "--split-seed", seed]
        found += [
            Stage(prepared.name, ["prepare", f"{data}", f"{prepared}", *how], prepared),
            Stage(lm.name, ["language-model", f"{prepared}", f"{lm}", *LANGUAGE_MODEL], lm),
            Stage(f"{prepared.name} claims", ["claims", f"{prepared}"], prepared / CLAIMS),
        ]
    return [*found, Stage("experiment", ["experiment", grid])]


def main(data: Path, grid: str = GRID) -> None:
    """Prepare every split of the grid with a language model of its own, then measure the grid."""
    run_stages(stages(data, grid), Path("runs/openi"), run)


if __name__ == "__main__":
    sys.exit(run_script(main))
