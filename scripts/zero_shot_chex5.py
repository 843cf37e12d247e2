"""Zero-shot CheX5 metrics of a model on a prepared set, as a table per class.

    python scripts/zero_shot_chex5.py MODEL PREPARED OUT [--labels TABLE] [--prompts NAME_OR_FILE]

Everything is that of ``medclip-debias evaluate``; this prints the zero-shot part of its results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from medclip_debias.errors import EXIT_CODE, UserError
from medclip_debias.evaluation.evaluate import evaluate
from medclip_debias.evaluation.table import Results

COLUMNS = ("auc", "accuracy", "balanced_accuracy", "average_precision", "f1", "ece")


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model_folder", type=Path, metavar="model")
    parser.add_argument("prepared", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--labels", type=Path)
    parser.add_argument("--prompts")
    parser.add_argument("--split", default="test")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(words)
    try:
        results = evaluate(**vars(given), heatmaps=0)
        if "zero_shot" not in results.protocols:
            raise UserError(results["skipped"]["zero_shot"])
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_CODE
    show(results)
    return 0


def show(results: Results) -> None:
    """Print the classes, their mean, those refused, and the multi-class metric."""
    details = results.details("zero_shot")
    print(f"| class | present | absent | {' | '.join(COLUMNS)} |")
    print("| --- | ---: | ---: |" + " ---: |" * len(COLUMNS))
    for name, row in details["classes"].items():
        cells = [cell(results, key, name) for key in COLUMNS]
        print(f"| {name} | {row['positive']} | {row['negative']} | {' | '.join(cells)} |")
    means = (cell(results, "mean_auc" if key == "auc" else key) for key in COLUMNS)
    print(f"| mean | | | {' | '.join(means)} |")
    for name, row in details["refused"].items():
        print(
            f"\nNot measured: {name}, {row['reason']} ({row['positive']} present, "
            f"{row['negative']} absent)."
        )
    several = results.row("zero_shot", "multiclass_accuracy")
    if several is not None:
        accuracy = cell(results, "multiclass_accuracy")
        print(f"\nMulti-class accuracy: {accuracy} on {several['n']} images")


def cell(results: Results, metric: str, of_class: str | None = None) -> str:
    value = results.value("zero_shot", metric, of_class)
    if value is None:
        return "-"
    interval = results.interval("zero_shot", metric, of_class)
    return f"{value:.3f}" + (f" ({interval[0]:.3f}-{interval[1]:.3f})" if interval else "")


if __name__ == "__main__":
    sys.exit(main())
