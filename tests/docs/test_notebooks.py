"""The notebooks run from the first cell to the last, and hold no outputs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs/notebooks").glob("*.ipynb"))
CHECKS = {
    "quick_start": [
        lambda names: names["table"].to_numpy().min() >= 0,
        lambda names: names["table"].shape == (len(names["files"]), 5),
        lambda names: names["maps"].values.shape[1:] == names["maps"].image.shape,
    ],
    "own_loop": [
        lambda names: names["history"][-1] < names["history"][0],
    ],
    "ground": [
        lambda names: Path("ground.png").stat().st_size > 1000,
        lambda names: 0 <= names["inside"] <= 1,
    ],
    "monai": [
        lambda names: [map.shape[0] for map in names["heatmaps"]] == [2, 2],
    ],
    "fine_tune": [
        lambda names: names["tuned"].network.content_hash != names["peer"].network.content_hash,
        lambda names: (names["scores"][0] - names["scores"][1]).abs().max() > 1e-6,
    ],
    "compare": [
        lambda names: set(names["table"]["run"]) == {"runs/demo", "runs/uncorrected"},
        lambda names: "seed" in names["said"],
    ],
}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(path, reader):
    names = {}
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(one for one in cells if one["cell_type"] == "code"):
        assert cell["outputs"] == []  # nothing of the data that it was tried on
        exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)
    for check in CHECKS[path.stem]:
        assert check(names)
