"""The sample of results in docs/benchmark: our models on the phantom and on Open-i.

Every line that starts with `$` is a command that you can type yourself. Run again, what was
measured is not measured anew. ROOT holds Open-i (docs/openi.md) and the phantom of the cards:
`medclip-debias phantom ROOT/phantom --studies 3000 --seed 40 --set regime=hospital`.

    python scripts/bench/sample_repository.py ROOT NAME=MODEL_FOLDER ... --baseline NAME
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
from pathlib import Path

import pandas as pd

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


def main() -> None:
    """Measure, copy, check, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("data", type=Path, help="folder that holds the archives")
    parser.add_argument("models", nargs="+", help="NAME=FOLDER")
    parser.add_argument("--baseline", required=True, help="name of the model to compare with")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark"))
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    options = parser.parse_args()
    results, shared = options.out, options.repository
    words = ["--tasks", ",".join(CARDS), "--data", str(options.data), "--out", str(results)]
    do("bench", *options.models, *words)
    for word in options.models:
        publish(results / word.partition("=")[0], shared)
    do("bench", "validate", str(shared))
    do("bench", "table", str(shared), "--baseline", options.baseline)


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
    main()
