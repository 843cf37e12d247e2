"""How far one model's metrics move between protocol presets, the predictions being the same.

    python scripts/bench/presets.py MODEL PREPARED [--split test] [--prompts NAME]

One pass of `medclip-debias evaluate --preset all`; writes markdown tables to standard output.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from medclip_debias.evaluation.catalogue import value_at
from medclip_debias.evaluation.evaluate import EvaluationOptions, evaluate

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
    "zero_shot.auc": "mean_auc",
    "zero_shot.one_of_several": "multiclass.accuracy",
    "study_retrieval.candidates": "studies",
    **{
        f"study_retrieval.recall_at_{k}": f"report.strict.image_to_report.recall_at_{k}"
        for k in (1, 5, 10)
    },
    **{
        f"study_retrieval.precision_at_{k}": f"class_precision.image_to_report.precision_at_{k}"
        for k in (5, 10)
    },
}
"""Where our own metric stands, if not under the preset's name."""


def table(part: str, results: Mapping[str, Any]) -> str:
    """One row a preset that has the part, ours first."""
    own = results.get(part) or {}
    rows: dict[str, Mapping[str, Any]] = {
        "ours": {k: value_at(own, OURS.get(f"{part}.{k}", k)) for k in COLUMNS[part].values()}
    }
    rows |= {name: found[part] for name, found in results["presets"].items() if part in found}
    lines = [f"| {part} | {' | '.join(COLUMNS[part])} |", "| --- " * (len(COLUMNS[part]) + 1) + "|"]
    for name, found in rows.items():
        values = [found.get(key) for key in COLUMNS[part].values()]
        cells = [
            "" if v is None else f"{v:.3f}" if isinstance(v, float) else str(v) for v in values
        ]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Evaluate once, and print a table for each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--prompts")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        results = evaluate(
            given.model,
            given.prepared,
            Path(folder),
            split=given.split,
            prompts=given.prompts,
            bootstrap=0,
            heatmaps=0,
            options=EvaluationOptions(preset="all"),
        )
    print("\n\n".join(table(part, results) for part in COLUMNS if part in results))


if __name__ == "__main__":
    main()
