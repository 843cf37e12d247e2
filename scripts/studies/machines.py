"""How far a cell of a grid moves when another kind of processor measures it.

The same seed gives the same batches and starting weights everywhere; sums are rounded otherwise by
another processor's vector units, and training carries that on. The libraries' own switches
(``ATEN_CPU_CAPABILITY``, ``ONEDNN_MAX_CPU_ISA``, ``MKL_ENABLE_INSTRUCTIONS``) make one processor
round as another would.

Run as ``python scripts/studies/machines.py ONE OTHER``, two folders of grids that share cells.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from medclip_debias.errors import UserError
from medclip_debias.files import read_json

Row = Mapping[str, Any]


def moved(one: Sequence[Row], other: Sequence[Row], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """For each metric: how far cells that both grids hold are apart.

    Returns:
        ``cells``; ``between_machines``, the root mean square of the difference of a cell over
        sqrt(2), which is the standard deviation that a machine adds to it; ``between_seeds``, the
        standard deviation over seeds within a method; ``largest`` difference; ``of_means``, the
        largest difference between the means of a method.

    Raises:
        UserError: no cell is in both.
    """

    def key(row: Row) -> tuple[str, int]:
        return str(row["method"]), int(row["seed"])

    first, second = ({key(row): row for row in rows} for rows in (one, other))
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise UserError("the two grids share no cell: same methods, same seeds are needed.")
    methods = sorted({method for method, _ in shared})
    result = []
    for metric in metrics:
        a, b = (
            np.array([rows[cell]["metrics"][metric] for cell in shared]) for rows in (first, second)
        )
        of = np.array([method for method, _ in shared])
        within = [a[of == m].var(ddof=1) for m in methods if (of == m).sum() > 1]
        result.append(
            {
                "metric": metric,
                "cells": len(shared),
                "between_machines": float(np.sqrt(np.mean((a - b) ** 2) / 2)),
                "between_seeds": float(np.sqrt(np.mean(within))) if within else None,
                "largest": float(np.abs(a - b).max()),
                "of_means": max(float(abs((a - b)[of == m].mean())) for m in methods),
            }
        )
    return result


def main() -> None:
    """Read the command line, print a line for each metric."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("one", type=Path, help="folder of a grid")
    parser.add_argument("other", type=Path, help="folder of the same cells, measured elsewhere")
    options = parser.parse_args()
    try:
        contents = [
            read_json(folder / "results.json", "run 'medclip-debias experiment' to write it")
            for folder in (options.one, options.other)
        ]
        metrics = contents[1]["settings"]["metrics"]
        for line in moved(contents[0]["rows"], contents[1]["rows"], metrics):
            print(line)
    except UserError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
