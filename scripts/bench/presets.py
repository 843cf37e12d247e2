"""How far one model's metrics move between protocol presets, the predictions being the same.

    python scripts/bench/presets.py MODEL PREPARED [--split test] [--prompts NAME]

One pass of `medclip-debias evaluate --preset all`; writes markdown tables to standard output.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import typer

from medclip_debias.evaluation.evaluate import EvaluationOptions, evaluate
from medclip_debias.evaluation.table import Results

COLUMNS = {
    "zero_shot": {
        "AUC": "auc",
        "accuracy": "accuracy",
        "F1": "f1",
        "one of several": "one_of_several",
    },
    "grounding": {
        "phrases": "phrases",
        "mIoU": "miou",
        "CNR": "cnr",
        "CNR, signed": "cnr_signed",
        "pointing": "pointing_game",
        "Dice, threshold from test": "dice_at_best_threshold_on_test",
    },
    "study_retrieval": {
        "candidates": "candidates",
        **{f"R@{k}": f"recall_at_{k}" for k in (1, 5, 10)},
        **{f"P@{k}": f"precision_at_{k}" for k in (5, 10)},
        "images of one class": "precision_images",
    },
}
OURS = {
    "zero_shot.auc": ("mean_auc", None),
    "zero_shot.one_of_several": ("multiclass_accuracy", None),
    "study_retrieval.candidates": ("studies", None),
    **{
        f"study_retrieval.recall_at_{k}": (f"recall_at_{k}", "strict, image to report")
        for k in (1, 5, 10)
    },
}
"""Where our own metric stands, if not under the preset's name."""


def table(part: str, results: Results) -> str:
    """One row a preset that has the part, ours first."""
    lines = [f"| {part} | {' | '.join(COLUMNS[part])} |", "| --- " * (len(COLUMNS[part]) + 1) + "|"]
    for name in ("ours", *results["presets"]):
        group, counts = f"preset {name}", results["presets"].get(name, {}).get(part)
        if name == "ours":
            group, counts = "", results.details(part)
        if counts is None:
            continue
        values: list[float | int | None] = []
        for key in COLUMNS[part].values():
            metric, within = OURS.get(f"{part}.{key}", (key, None)) if not group else (key, group)
            value = results.value(part, metric, None, within)
            values.append(counts.get(metric) if value is None else value)
        cells = [
            "" if v is None else f"{v:.3f}" if isinstance(v, float) else str(v) for v in values
        ]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(model: Path, prepared: Path, split: str = "test", prompts: str | None = None) -> None:
    """Evaluate once, and print a table for each part."""
    with TemporaryDirectory() as folder:
        results = evaluate(
            model,
            prepared,
            Path(folder),
            split=split,
            prompts=prompts,
            bootstrap=0,
            heatmaps=0,
            options=EvaluationOptions(preset="all"),
        )
    print("\n\n".join(table(part, results) for part in COLUMNS if part in results))


if __name__ == "__main__":
    typer.run(main)
