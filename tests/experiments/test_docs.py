"""docs/experiments.md: its example runs as written, and prints what the page says."""

from __future__ import annotations

import os
import re
import shlex
from functools import partial
from pathlib import Path

from medclip_debias.cli import run
from medclip_debias.evaluation import compare
from medclip_debias.evaluation import evaluate as evaluation
from medclip_debias.experiments import trainings

PAGE = Path(__file__).parents[2] / "docs/experiments.md"


def shape(line: str) -> str:
    """A printed line without its numbers, and without what chance decides."""
    line = re.sub(r"( against [^:]+: ).*", r"\1", line)
    return re.sub(r"[+-]?\d[\d.,]*", "#", re.sub(r"about \S+ (s|min|h) ", "about # s ", line))


def test_the_example_runs_as_written_and_prints_what_the_page_says(tmp_path, monkeypatch, capsys):
    example = PAGE.read_text().split("## An example")[1].split("\n## ")[0]
    blocks = re.findall(r"```(\w*)\n(.*?)```", example, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["", "yaml", "", ""]
    monkeypatch.chdir(tmp_path)
    # What the grid asks for; test_trainings.py evaluates a cell whole, and asks a process its pace.
    only = {"grounding", "retrieval"}
    monkeypatch.setattr(evaluation, "plan", partial(evaluation.plan, only=only))
    monkeypatch.setattr(compare, "compare", partial(compare.compare, resamples=100))
    # In one process: those of the executor are tested in tests/data.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    monkeypatch.setattr(trainings, "map_pieces", lambda function, jobs, _: map(function, jobs))
    Path("grid.yaml").write_text(blocks[1][1])
    for line in (blocks[0][1] + blocks[2][1]).splitlines():
        capsys.readouterr()
        assert run(shlex.split(line)[1:]) == 0, line
    captured = capsys.readouterr()
    printed = [shape(line) for line in (captured.err + captured.out).splitlines()]
    said = [shape(line) for line in blocks[3][1].splitlines()]
    assert [line for line in printed if not line.startswith("Cells")] == said
    for name in ("page.md", "figure.svg", "figure.png", "tables.tex", "results.json"):
        assert (Path("runs/experiments/grid") / name).is_file()
