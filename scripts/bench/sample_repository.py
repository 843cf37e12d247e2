"""The sample of results in docs/benchmark: our models on the phantom and on Open-i.

Every line that starts with `$` is a command that you can type yourself. Run again, what was
measured is not measured anew. ROOT holds Open-i (docs/openi.md) and the phantom of the cards:
`medclip-debias phantom ROOT/phantom --studies 3000 --seed 40 --set regime=hospital`.

    python scripts/bench/sample_repository.py ROOT NAME=MODEL_FOLDER ... --baseline NAME
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path
from typing import Annotated

import pandas as pd
import typer

from medclip_debias.cli import run
from medclip_debias.files import write_json

REPOSITORY = Path(__file__).parents[2] / "docs" / "benchmark"
CARDS = (
    *("openi/held-out-zero-shot", "openi/held-out-retrieval"),
    *("phantom/zero-shot", "phantom/retrieval", "phantom/grounding"),
)
LICENCE = "weights not published"


def do(*words: str) -> None:
    """Run one command line, after showing it; end with its code if it fails."""
    print(f"$ medclip-debias {shlex.join(words)}", flush=True)
    if code := run(list(words)):
        sys.exit(code)


def main(
    data: Annotated[Path, typer.Argument(help="folder that holds the archives")],
    models: Annotated[list[str], typer.Argument(help="NAME=FOLDER")],
    baseline: Annotated[str, typer.Option(help="name of the model to compare with")],
    out: Path = Path("runs/benchmark"),
    repository: Path = REPOSITORY,
) -> None:
    """Measure, copy, check, and print the table."""
    results, shared = out, repository
    words = ["--tasks", ",".join(CARDS), "--data", str(data), "--out", str(results)]
    do("bench", *models, *words)
    for word in models:
        publish(results / word.partition("=")[0], shared)
    do("bench", "validate", str(shared))
    do("bench", "table", str(shared), "--baseline", baseline)


def publish(model: Path, shared: Path) -> None:
    """Copy a model's results; the labels of a real archive are not ours to hand on."""
    target = shared / model.name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(model, target)
    content = json.loads((target / "model.json").read_text(encoding="utf-8"))
    write_json(target / "model.json", content | {"licence": content["licence"] or LICENCE})
    for path in target.glob("openi.*/items/zero_shot.parquet"):
        table = pd.read_parquet(path)
        told = ("label.", "positive.", "negative.")
        kept = [name for name in table.columns if not name.startswith(told)]
        table[kept].to_parquet(path, index=False)


if __name__ == "__main__":
    typer.run(main)
