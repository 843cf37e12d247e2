"""Offsets on a grid's models: judged again on the grid's own images, arms paired by seed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from medclip_debias.cli import run
from medclip_debias.errors import UserError
from studies.offsets import judged_again, moved, table
from tests.grounding.conftest import make_model  # noqa: F401


def cell(method, seed, without, with_):
    return {"method": method, "seed": seed} | {
        side: {"balanced_accuracy": value, "accuracy": value, "ece": value}
        for side, value in (("without", without), ("with", with_))
    }


def test_an_arm_stands_beside_the_baseline_with_and_without():
    cells = [cell("a", 0, 0.5, 0.6), cell("a", 1, 0.7, 0.6), cell("b", 0, 0.4, 0.6)]
    cells.append(cell("b", 1, 0.4, 0.6))
    lines = table(cells, "b", ["b", "a"])
    # By hand: Student's t of one degree of freedom is 12.706, the standard error .1.
    assert lines[3] == (
        "| balanced accuracy | a | 0.600 | 0.600 | +0.000 [-1.271, +1.271] "
        "| +0.200 [-1.071, +1.471] | +0.000 [+0.000, +0.000] |"
    )
    assert lines[2].endswith("|  |  |")


@pytest.fixture(scope="module")
def grid(prepared_phantom, make_model, tmp_path_factory) -> Path:  # noqa: F811
    """A grid's folder with one cell, as `medclip-debias experiment` leaves it."""
    folder = tmp_path_factory.mktemp("grid")
    place = folder / "runs" / "a0"
    make_model(72, 64, (0.5, 99.5)).save(place / "model")
    out = place / "evaluate"
    words = ["evaluate", str(place / "model"), str(prepared_phantom), "--out", str(out)]
    assert run([*words, "--bootstrap", "0", "--heatmaps", "0"]) == 0
    row = {
        "method": "a",
        "seed": 0,
        "folder": "a0/evaluate",
        "run": {"prepared": str(prepared_phantom)},
        "evaluate": {"split": "test", "prompts": None, "classes": None, "options": {}},
    }
    content = {"rows": [row], "figures": {"contrasts": []}}
    (folder / "results.json").write_text(json.dumps(content))
    return folder


def test_constants_move_decisions_and_no_single_prompt_s_auc(grid):
    (found,) = judged_again(grid, ["a"])
    assert found["with"]["offsets"]["from"] == "validate"
    assert found["without"]["offsets"] is None
    assert found["with"]["accuracy"] != found["without"]["accuracy"]
    assert moved([found]) == 0
    assert judged_again(grid, ["b"]) == []


def test_a_cell_without_its_evaluation_is_a_sentence(grid, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(grid, copy)
    shutil.rmtree(copy / "runs" / "a0" / "evaluate")
    with pytest.raises(UserError, match="run the grid's experiment again"):
        judged_again(copy, ["a"])
