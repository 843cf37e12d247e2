"""docs/experiments.md: its example is a grid of six cells, all of which can be run."""

from __future__ import annotations

import json
import re
from pathlib import Path

from medclip_debias.cli import run

PAGE = Path(__file__).parents[2] / "docs/experiments.md"


def test_the_example_plans_its_cells(place, tmp_path, capsys):
    """`place` stands for what its first commands make; tests/docs reads every command."""
    example = PAGE.read_text().split("## An example")[1].split("\n## ")[0]
    grid = tmp_path / "grid.yaml"
    grid.write_text(re.search(r"```yaml\n(.*?)```", example, re.DOTALL)[1])
    words = [f"base.prepared={place.prepared}", f"base.model.text.folder={place.language_model}"]
    words += ["base.preprocessing.prepare.size=72", "seconds_per_step=0.1", "--plan", "--json"]
    assert run(["experiment", str(grid), *words, "--out", str(tmp_path / "out")]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["cells"], plan["missing"]) == (6, 6)
