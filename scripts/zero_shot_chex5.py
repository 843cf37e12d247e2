"""Zero-shot CheX5 metrics of a model on a prepared set, as a table per class.

    python scripts/zero_shot_chex5.py MODEL PREPARED OUT [--labels TABLE] [--prompts NAME_OR_FILE]

Everything is that of ``medclip-debias evaluate``; this prints the zero-shot part of its results.
"""

from __future__ import annotations

import sys
from pathlib import Path

from commands import run_script
from medclip_debias.errors import UserError
from medclip_debias.evaluation.evaluate import evaluate
from medclip_debias.evaluation.table import Results

COLUMNS = ("auc", "accuracy", "balanced_accuracy", "average_precision", "f1", "ece")


def main(
    model: Path,
    prepared: Path,
    out: Path,
    labels: Path | None = None,
    prompts: str | None = None,
    split: str = "test",
    device: str = "auto",
) -> None:
    """Evaluate, and print the zero-shot part as a table."""
    results = evaluate(
        model, prepared, out, labels=labels, prompts=prompts, split=split, device=device, heatmaps=0
    )
    if "zero_shot" not in results.protocols:
        raise UserError(results["skipped"]["zero_shot"])
    show(results)


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
    sys.exit(run_script(main))
