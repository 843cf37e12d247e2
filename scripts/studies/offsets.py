"""Offset correction on the models of measured grids: decisions with and without it (theory, T7).

Run as ``python scripts/studies/offsets.py FOLDER ... --methods NAME ...``; several grids may hold
other seeds of the same arms. The cells' models judge the grid's own test images again with one
constant per prompt, taken from the images of the validate split without their labels
(docs/evaluation.md, ``offsets``). Differences are of pairs of seeds, with Student's 95% over seeds,
which does not cover the patients; nothing is tested.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

if __name__ == "__main__":
    # As a package of its own: its modules' names are too common for the top level.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from medclip_debias.errors import UserError
from medclip_debias.evaluation.table import Results
from studies.pooled import paired, read_evaluation, results_of, student

ONE_PROMPT = ("mean_auc_positive", "mean_auc_negative")
SHOWN = {
    "balanced_accuracy": "balanced accuracy",
    "accuracy": "accuracy",
    "ece": "calibration error (ECE), lower is better",
}


def judged_again(folder: Path, methods: Sequence[str]) -> list[dict[str, Any]]:
    """Method, seed and zero-shot figures of each cell, ``without`` and ``with`` offsets.

    Args:
        folder: of a measured grid, with its runs.
        methods: arms to judge.

    Raises:
        UserError: a cell's model or evaluation is not there.
    """
    rows = [row for row in results_of(folder)["rows"] if row["method"] in methods]
    found = []
    for number, row in enumerate(rows, 1):
        print(f"{folder.name}: {number} of {len(rows)}", file=sys.stderr, flush=True)
        cell = {"method": row["method"], "seed": row["seed"], "without": stored(folder, row)}
        found.append(cell | {"with": with_offsets(folder, row)})
    return found


def stored(folder: Path, row: dict[str, Any]) -> dict[str, Any]:
    """What the grid measured of a cell, without offsets."""
    place = folder / "runs" / row["folder"] / "results.json"
    return zero_shot_figures(read_evaluation(place))


def with_offsets(folder: Path, row: dict[str, Any]) -> dict[str, Any]:
    """The same evaluation with the validate split's constants."""
    from medclip_debias.evaluation.evaluate import evaluate
    from medclip_debias.evaluation.options import EvaluationOptions

    asked = dict(row["evaluate"])
    options = asked.pop("options") | {"offsets": "validate"}
    asked |= {"options": EvaluationOptions.model_validate(options), "bootstrap": 0, "heatmaps": 0}
    model = folder / "runs" / Path(row["folder"]).parent / "model"
    with tempfile.TemporaryDirectory() as out:
        return zero_shot_figures(evaluate(model, Path(row["run"]["prepared"]), Path(out), **asked))


def zero_shot_figures(results: Results) -> dict[str, Any]:
    """The figures that are compared, and the constants that were taken off."""
    figures = {name: results.value("zero_shot", name) for name in (*ONE_PROMPT, *SHOWN)}
    return figures | {"offsets": results.details("zero_shot")["offsets"]}


def moved(cells: Sequence[dict[str, Any]]) -> float:
    """How far the AUC of single prompts moves at most: it cannot, but for rounding."""
    return max(abs(c["with"][name] - c["without"][name]) for c in cells for name in ONE_PROMPT)


def table(cells: Sequence[dict[str, Any]], baseline: str, methods: Sequence[str]) -> list[str]:
    """Rows of Markdown: each arm's means without and with, and its differences to the baseline."""
    lines = [
        "| outcome | arm | without | with | with minus without "
        f"| minus {baseline}, without | minus {baseline}, with |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for key, title in SHOWN.items():
        for method in methods:
            own = [c for c in cells if c["method"] == method]
            said = [f"| {title}", method]
            said += [f"{mean(c[side][key] for c in own):.3f}" for side in ("without", "with")]
            said.append(interval([c["with"][key] - c["without"][key] for c in own]))
            for side in ("without", "with"):
                rows = [
                    {"method": c["method"], "seed": c["seed"], "metrics": {key: c[side][key]}}
                    for c in cells
                ]
                same = method == baseline
                said.append("" if same else interval(paired([rows], method, baseline, key)))
            lines.append(" | ".join(said) + " |")
    return lines


def interval(values: Sequence[float]) -> str:
    """Mean with Student's 95%."""
    low, high = student(values)
    return f"{mean(values):+.3f} [{low:+.3f}, {high:+.3f}]"


def main() -> None:
    """Read the command line, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="of grids")
    parser.add_argument("--baseline", default="InfoNCE")
    parser.add_argument("--methods", nargs="+", required=True)
    options = parser.parse_args()
    methods = [options.baseline, *options.methods]
    try:
        cells = [cell for folder in options.folders for cell in judged_again(folder, methods)]
        print("\n".join(table(cells, options.baseline, methods)))
        print(f"\n{len(cells)} cells; the AUC of single prompts moves by {moved(cells):g} at most")
    except UserError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
