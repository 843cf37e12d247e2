"""What else the cells of a grid measured, beside the outcomes that were registered: a description.

Run as ``python scripts/studies/outcomes.py FOLDER ... --against NAME --methods NAME ...``. Read
from each cell's evaluation; several grids may hold other seeds of the same. With ``--truth FOLDER``
of a phantom its cells' models are also judged on the 28 true classes of type, side, zone and
severity, which no label of a set names. Differences are of
pairs of seeds, with Student's 95% over seeds, which does not cover the patients; nothing is tested
and nothing corrected. "Rare classes" is the half of the classes with the fewest positive test
images. Strict retrieval counts the query's own partner, "equal ones count" every one of the same
text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

if __name__ == "__main__":
    # As a package of its own: its modules' names are too common for the top level.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from medclip_debias.errors import UserError
from medclip_debias.evaluation.table import Results
from studies.pooled import paired, read_evaluation, results_of, student

Read = Callable[[Results], float | None]


def at(protocol: str, metric: str, group: str | None = None) -> Read:
    """Reads a number of the whole or of a group; None where there is none."""
    return lambda results: results.value(protocol, metric, None, group)


def rare_classes(results: Results) -> float | None:
    """Mean AUC of the half of the classes that have the fewest positive images."""
    aucs = results.by_class("zero_shot", "auc")
    counts = results.details("zero_shot").get("classes") or {}
    fewest = sorted(aucs, key=lambda name: int(counts[name]["positive"]))[: len(aucs) // 2]
    return mean(aucs[name] for name in fewest) if fewest else None


_TEN = "recall_at_10"
OUTCOMES: dict[str, Read] = {
    "AUC": at("zero_shot", "mean_auc"),
    "AUC, positive prompts alone": at("zero_shot", "mean_auc_positive"),
    "AUC, negative prompts alone": at("zero_shot", "mean_auc_negative"),
    "AUC, rare classes": rare_classes,
    "average precision": at("zero_shot", "average_precision"),
    "balanced accuracy": at("zero_shot", "balanced_accuracy"),
    "accuracy": at("zero_shot", "accuracy"),
    "calibration error (ECE), lower is better": at("zero_shot", "ece"),
    "contradictions, lower is better": at("zero_shot", "contradiction_rate"),
    "accuracy, one class of all": at("zero_shot", "multiclass_accuracy"),
    "CNR": at("grounding", "cnr"),
    "mIoU": at("grounding", "miou"),
    "pointing game": at("grounding", "pointing_game"),
    "box to sentence, recall@10": at("retrieval", _TEN, "strict, box to sentence"),
    "sentence to box, recall@10": at("retrieval", _TEN, "strict, sentence to box"),
    "boxes, recall, equal ones count": at("retrieval", "recall", "lenient"),
    "image to report, recall@10": at("study_retrieval", _TEN, "strict, image to report"),
    "report to image, recall@10": at("study_retrieval", _TEN, "strict, report to image"),
    "reports, recall, equal ones count": at("study_retrieval", "recall", "lenient"),
    "image to sentence, recall@10": at("study_retrieval", _TEN, "strict, image to sentence"),
    "sentence to image, recall@10": at("study_retrieval", _TEN, "strict, sentence to image"),
    "sentences, recall, equal ones count": at("study_retrieval", "recall", "sentences, lenient"),
    "report to image, same class@10": at("study_retrieval", "precision_at_10", "report to image"),
    "image to report, same class@10": at("study_retrieval", "precision_at_10"),
}


def by_truth(folder: Path, row: Mapping[str, Any], truth: Path) -> dict[str, float]:
    """AUC of a cell's model on the phantom's true classes: all, and the ends by frequency."""
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.evaluation.encoding import Network, encode
    from medclip_debias.evaluation.protocol import Draw
    from medclip_debias.models.load import load_model
    from studies.phantom_run import HEAD, TAIL, fine_classes

    data = PreparedSet.open(Path(row["run"]["prepared"]))
    model = load_model(folder / "runs" / Path(row["folder"]).parent / "model")
    fine = fine_classes(data, truth)
    encode(model, Network(model, data), [fine], batch_size=64)
    each = list(fine.measure(Draw(0)).by_class("auc").values())
    return {
        f"AUC, {len(each)} true classes of severity and place": mean(each),
        f"AUC, the {HEAD} most frequent of them": mean(each[:HEAD]),
        f"AUC, the {TAIL} rarest of them": mean(each[-TAIL:]),
    }


def cells(
    folder: Path, methods: Sequence[str] | None = None, truth: Path | None = None
) -> list[dict[str, Any]]:
    """Method, seed and outcomes of each cell of a grid.

    Args:
        folder: of the grid.
        methods: arms to take; all by default.
        truth: a phantom's folder of what is true, for its fine classes.

    Raises:
        UserError: a cell's evaluation is not there.
    """
    found = []
    for row in results_of(folder)["rows"]:
        if methods is not None and row["method"] not in methods:
            continue
        place = folder / "runs" / row["folder"] / "results.json"
        results = read_evaluation(place)
        values = {name: read(results) for name, read in OUTCOMES.items()}
        if truth is not None:
            values |= by_truth(folder, row, truth)
        found.append({"method": row["method"], "seed": row["seed"], "metrics": values})
    return found


def table(
    grids: Sequence[Sequence[dict[str, Any]]], against: str, methods: Sequence[str]
) -> list[str]:
    """Rows of Markdown: the mean of ``against``, and each method's difference to it.

    Raises:
        UserError: a method is not in the grids.
    """
    rows = [row for grid in grids for row in grid]
    lines = [
        " | ".join(["| outcome", against, *(f"{name} minus {against}" for name in methods)]) + " |",
        "| --- " * (len(methods) + 2) + "|",
    ]
    for outcome in rows[0]["metrics"] if rows else ():
        own = [row["metrics"][outcome] for row in rows if row["method"] == against]
        if any(value is None for value in own) or not own:
            continue
        said = [f"| {outcome}", f"{mean(own):.3f}"]
        for method in methods:
            found = paired(grids, method, against, outcome)
            low, high = student(found)
            said.append(f"{mean(found):+.3f} [{low:+.3f}, {high:+.3f}]")
        lines.append(" | ".join(said) + " |")
    return lines


def main() -> None:
    """Read the command line, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", help="of grids")
    parser.add_argument("--against", default="InfoNCE")
    parser.add_argument("--methods", nargs="+", required=True)
    parser.add_argument("--truth", type=Path, help="a phantom's folder 'truth', for fine classes")
    options = parser.parse_args()
    wanted = [options.against, *options.methods]
    try:
        grids = [cells(folder, wanted, options.truth) for folder in options.folders]
        print("\n".join(table(grids, options.against, options.methods)))
    except UserError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
