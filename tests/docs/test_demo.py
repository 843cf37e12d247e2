"""A demo that was done, given again."""

from __future__ import annotations

import json
from pathlib import Path

from medclip_debias.cli import run


def test_a_demo_that_was_done_goes_on_and_answers_in_json(reader, capsys, monkeypatch):
    # Without the trainings beside it, which scripts/newcomer.py runs.
    monkeypatch.setattr("medclip_debias.cli.demo._beside", lambda *_: [])
    before = json.loads(Path("runs/demo/results.json").read_text("utf-8"))["metrics"]
    assert run(["demo", "--quick", "--json", "--quiet"]) == 0
    said = capsys.readouterr()
    made = json.loads(said.out)
    assert set(made) == {"model", "results.json", "report.html"}
    assert all(Path(path).exists() for path in made.values())
    assert "# runs/demo/prepared is there already" in said.err
    assert "$ medclip-debias train phantom/demo" in said.err
    after = json.loads(Path("runs/demo/results.json").read_text("utf-8"))
    assert after["metrics"] == before  # the finished model was left as it is
    assert {"train", "evaluate", "total"} <= set(after["timing"])
