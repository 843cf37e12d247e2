"""Each split of the reports has a language model that has read its training reports alone."""

from __future__ import annotations

from pathlib import Path

from medclip_debias.experiments.grid import read_grid, runs
from openi_splits import GRID, stages


def test_every_run_of_a_split_uses_the_language_model_made_of_that_split():
    made = {}
    for stage in stages(Path("data"), GRID):
        words = list(stage.words)
        if words[0] == "language-model":
            made[words[1]] = words[2]
        if words[0] == "prepare":
            assert words[-2:] == ["--split-seed", words[2].rpartition("_")[2]]
    used = {
        (run.content["prepared"], run.content["model"]["text"]["folder"])
        for run in runs(read_grid(GRID))
    }
    assert used == set(made.items())
    assert len(set(made.values())) == len(made) == 4
