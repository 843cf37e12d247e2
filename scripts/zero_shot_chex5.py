"""Zero-shot CheX5 metrics of a model on a prepared set, as a table per class.

    python scripts/zero_shot_chex5.py MODEL PREPARED OUT [--labels TABLE] [--prompts NAME_OR_FILE]

Everything is that of ``medclip-debias evaluate``; this prints the zero-shot part of its results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medclip_debias.errors import EXIT_CODE, UserError
from medclip_debias.evaluation.evaluate import evaluate

COLUMNS = ("auc", "accuracy", "balanced_accuracy", "average_precision", "f1", "ece")


def main(words: Sequence[str] | None = None) -> int:
    """Evaluate and print; exit code 2 with one sentence for what cannot be used.

    Args:
        words: of the command line; by default those of this process.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--prompts")
    parser.add_argument("--split", default="test")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(words)
    try:
        results = evaluate(
            given.model,
            given.prepared,
            given.out,
            split=given.split,
            labels=given.labels,
            prompts=given.prompts,
            device=given.device,
            heatmaps=0,
        )
        if "zero_shot" not in results:
            raise UserError(results["skipped"]["zero_shot"])
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_CODE
    show(results["zero_shot"])
    return 0


def show(found: dict[str, Any]) -> None:
    """Print the classes, their mean, those refused, and the multi-class metric."""
    print(f"| class | present | absent | {' | '.join(COLUMNS)} |")
    print("| --- | ---: | ---: |" + " ---: |" * len(COLUMNS))
    for name, row in found["classes"].items():
        cells = [cell(row, key) for key in COLUMNS]
        print(f"| {name} | {row['positive']} | {row['negative']} | {' | '.join(cells)} |")
    mean = found | {"auc": found["mean_auc"]}
    mean["interval"] = found["interval"] | {"auc": found["interval"]["mean_auc"]}
    print(f"| mean | | | {' | '.join(cell(mean, key) for key in COLUMNS)} |")
    for name, row in found["refused"].items():
        print(
            f"\nNot measured: {name}, {row['reason']} ({row['positive']} present, "
            f"{row['negative']} absent)."
        )
    several = found["multiclass"]
    if "accuracy" in several:
        print(f"\nMulti-class accuracy: {cell(several, 'accuracy')} on {several['images']} images")


def cell(row: dict[str, Any], key: str) -> str:
    """A metric and its interval."""
    if row.get(key) is None:
        return "-"
    interval = row["interval"].get(key)
    return f"{row[key]:.3f}" + (f" ({interval[0]:.3f}-{interval[1]:.3f})" if interval else "")


if __name__ == "__main__":
    sys.exit(main())
