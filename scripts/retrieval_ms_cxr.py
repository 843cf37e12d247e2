"""Retrieval metrics of a model: boxes of MS-CXR (or any COCO file) and whole studies.

    python scripts/retrieval_ms_cxr.py MODEL PREPARED OUT [--phrases FILE]

Everything is that of ``medclip-debias evaluate``; this prints the retrieval parts of its results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from medclip_debias.errors import EXIT_CODE, UserError
from medclip_debias.evaluation.evaluate import evaluate
from medclip_debias.evaluation.protocols.retrieval import SHOWN_RECALLS


def main(words: Sequence[str] | None = None) -> int:
    """Evaluate and print; exit code 2 with one sentence for what cannot be used.

    Args:
        words: of the command line; by default those of this process.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("prepared", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--phrases", type=Path)
    parser.add_argument("--split", default="test")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(words)
    try:
        results = evaluate(
            given.model,
            given.prepared,
            given.out,
            split=given.split,
            phrases=given.phrases,
            device=given.device,
            heatmaps=0,
        )
    except UserError as error:
        print(error, file=sys.stderr)
        return EXIT_CODE
    recalls = " | ".join(f"R@{k}" for k in SHOWN_RECALLS)
    print(f"| task | duplicates | direction | queries | {recalls} | MedR |")
    print("| --- | --- | --- | ---: |" + " ---: |" * (len(SHOWN_RECALLS) + 1))
    if "retrieval" in results:
        show("boxes", results["retrieval"])
    studies = results.get("study_retrieval", {})
    for part in ("report", "sentence"):
        if part in studies:
            show(f"studies, {part}", studies[part])
    for way, found in studies.get("class_precision", {}).items():
        shares = {k: v for k, v in found.items() if k.startswith("precision_at") and v is not None}
        print(f"\n{way}: " + ", ".join(f"{k} {v:.3f}" for k, v in shares.items()))
    for name in ("retrieval", "study_retrieval"):
        if name in results["skipped"]:
            print(f"\nNot measured: {results['skipped'][name]}")
    return 0


def show(task: str, found: Mapping[str, Any]) -> None:
    """Print one row for each way of counting duplicates and each direction."""
    for mode in ("strict", "lenient"):
        for way, row in found[mode].items():
            if isinstance(row, Mapping) and "median_rank" in row and "queries" in row:
                shares = " | ".join(f"{row[f'recall_at_{k}']:.3f}" for k in SHOWN_RECALLS)
                title = way.replace("_", " ")
                print(
                    f"| {task} | {mode} | {title} | {row['queries']} | {shares} "
                    f"| {row['median_rank']:g} |"
                )


if __name__ == "__main__":
    sys.exit(main())
