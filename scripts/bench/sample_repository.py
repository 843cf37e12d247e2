"""The sample of a results repository in docs/benchmark: our models on the phantom and on Open-i.

Every line that starts with `$` is a command that you can type yourself. Run again, what was
measured is not measured anew. ROOT holds Open-i (docs/openi.md) and the phantom of the cards:
`medclip-debias phantom ROOT/phantom --studies 3000 --seed 40 --set regime=hospital`.

    python scripts/bench/sample_repository.py ROOT NAME=MODEL_FOLDER ... --baseline NAME
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path

from medclip_debias.cli import run

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
    """Measure, pack, check, and write the table and the page."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("data", type=Path, help="folder that holds the archives")
    parser.add_argument("models", nargs="+", help="NAME=FOLDER")
    parser.add_argument("--baseline", required=True, help="name of the model to compare with")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark"))
    parser.add_argument("--repository", type=Path, default=REPOSITORY)
    options = parser.parse_args()
    results, shared = str(options.out), str(options.repository)
    cards = ",".join(CARDS)
    do("bench", *options.models, "--tasks", cards, "--data", str(options.data), "--out", results)
    do("bench", "pack", results, "--out", shared, "--licence", LICENCE)
    do("bench", "validate", shared)
    compared = ("--baseline", options.baseline)
    do("bench", "table", shared, *compared, "--out", f"{shared}/README.md")
    do("bench", "site", shared, *compared, "--out", f"{results}/site")


if __name__ == "__main__":
    main()
