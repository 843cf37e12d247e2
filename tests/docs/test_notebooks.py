"""The notebooks run from the first cell to the last, and hold neither outputs nor data."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs/notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def cells(path, kind="code"):
    content = json.loads(path.read_text(encoding="utf-8"))
    return ["".join(c["source"]) for c in content["cells"] if c["cell_type"] == kind]


def test_the_notebooks_are_there_and_small_and_without_outputs():
    assert {path.stem for path in NOTEBOOKS} >= {
        "quick_start",
        "own_loop",
        "ground",
        "compare",
        "fine_tune",
        "monai",
    }
    for path in NOTEBOOKS:
        content = json.loads(path.read_text(encoding="utf-8"))
        assert content["nbformat"] == 4
        assert path.stat().st_size < 20_000
        assert content["cells"][0]["cell_type"] == "markdown"
        for cell in content["cells"]:
            assert cell.get("outputs", []) == []
            assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_its_first_cell_to_its_last(path, reader):
    names = {}
    for number, source in enumerate(cells(path)):
        exec(compile(source, f"{path.name}, cell {number}", "exec"), names)
    for check in CHECKS[path.stem]:
        assert check(names)


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
