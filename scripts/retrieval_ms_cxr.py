"""Retrieval metrics of a model: boxes of MS-CXR (or any COCO file) and whole studies.

    python scripts/retrieval_ms_cxr.py MODEL PREPARED OUT [--phrases FILE]

Everything is that of ``medclip-debias evaluate``; this prints the retrieval parts of its results.
"""

from __future__ import annotations

import sys
from pathlib import Path

from commands import run_script
from medclip_debias.evaluation.evaluate import evaluate
from medclip_debias.evaluation.protocols.retrieval import PRECISIONS, SHOWN_RECALLS
from medclip_debias.evaluation.table import Results

TASKS = (
    ("boxes", "retrieval", ("box to sentence", "sentence to box")),
    ("studies, report", "study_retrieval", ("report to image", "image to report")),
    ("studies, sentence", "study_retrieval", ("sentence to image", "image to sentence")),
)
"""What is printed: its name, its protocol, and its directions."""


def main(
    model: Path,
    prepared: Path,
    out: Path,
    phrases: Path | None = None,
    split: str = "test",
    device: str = "auto",
) -> None:
    """Evaluate, and print the retrieval parts as a table."""
    results = evaluate(
        model, prepared, out, phrases=phrases, split=split, device=device, heatmaps=0
    )
    recalls = " | ".join(f"R@{k}" for k in SHOWN_RECALLS)
    print(f"| task | duplicates | direction | queries | {recalls} | MedR |")
    print("| --- | --- | --- | ---: |" + " ---: |" * (len(SHOWN_RECALLS) + 1))
    for task, protocol, ways in TASKS:
        for mode in ("strict", "lenient"):
            for way in ways:
                show(results, task, protocol, mode, way)
    for group in ("report to image", None):
        names = [f"precision_at_{k}" for k in PRECISIONS]
        found = {name: results.value("study_retrieval", name, None, group) for name in names}
        shares = ", ".join(f"{name} {v:.3f}" for name, v in found.items() if v is not None)
        if shares:
            print(f"\n{group or 'image to report'}: {shares}")
    for name in ("retrieval", "study_retrieval"):
        if name in results["skipped"]:
            print(f"\nNot measured: {results['skipped'][name]}")


def show(results: Results, task: str, protocol: str, mode: str, way: str) -> None:
    """Print the row of one way of counting duplicates and one direction, if it was measured."""
    group = f"{mode}, {way}"
    rank = results.row(protocol, "median_rank", None, group)
    if rank is not None:
        recalls = (results.value(protocol, f"recall_at_{k}", None, group) for k in SHOWN_RECALLS)
        shares = " | ".join(f"{value:.3f}" for value in recalls)
        print(f"| {task} | {mode} | {way} | {rank['n']} | {shares} | {rank['value']:g} |")


if __name__ == "__main__":
    sys.exit(run_script(main))
