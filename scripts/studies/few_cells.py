"""Ten cells of a study, measured here: how far do they move on another kind of processor?

    export PYTHONPATH=scripts
    python -m studies.few_cells measure glofnd runs/machines/native.json
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \\
        OPENBLAS_CORETYPE=Haswell NPY_DISABLE_CPU_FEATURES="AVX512F AVX512CD AVX512_SKX" \\
        python -m studies.few_cells measure glofnd runs/machines/avx2.json
    python -m studies.few_cells compare runs/machines/native.json runs/machines/avx2.json

For studies that are no grids of trainings (those: ``machines.py``). The cells are spread evenly
over the study's own grid, with its default settings.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from medclip_debias.errors import UserError
from medclip_debias.files import read_json, write_json
from studies.study import find_study


def measured(name: str, count: int, inputs: Path) -> dict[str, Any]:
    """Measure ``count`` cells of the study ``name``, spread evenly over its grid."""
    study = find_study(name)(inputs=inputs)
    cells = study.cells()
    places = np.unique(np.linspace(0, len(cells) - 1, count).round().astype(int))
    return {"study": name, "rows": [dict(study.measure(cells[place])) for place in places]}


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number in ``value`` with the name of the figure that it belongs to."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, name or str(key))
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part, name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, float(value)


def moved(one: dict[str, Any], other: dict[str, Any]) -> list[dict[str, Any]]:
    """For each figure: its range over the cells, and the largest difference of a cell.

    Raises:
        UserError: the two are not of the same cells.
    """
    first, second = list(leaves(one["rows"])), list(leaves(other["rows"]))
    if one["study"] != other["study"] or [n for n, _ in first] != [n for n, _ in second]:
        raise UserError("the two files are not of the same cells; measure both by this script.")
    result = []
    for name in dict.fromkeys(name for name, _ in first):
        a, b = (np.array([v for n, v in each if n == name]) for each in (first, second))
        apart = np.abs(a - b)
        known = {"figure": name, "values": len(a), "from": float(a.min()), "to": float(a.max())}
        result.append(known | {"moved": int((apart > 0).sum()), "largest": float(apart.max())})
    return result


def main() -> None:
    """Read the command line; write a file, or print a line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parts = parser.add_subparsers(dest="part", required=True)
    measure = parts.add_parser("measure")
    measure.add_argument("name", help="of the study")
    measure.add_argument("out", type=Path)
    measure.add_argument("--cells", type=int, default=10)
    compare = parts.add_parser("compare")
    compare.add_argument("one", type=Path)
    compare.add_argument("other", type=Path)
    options = parser.parse_args()
    try:
        if options.part == "measure":
            found = measured(options.name, options.cells, options.out.parent / "inputs")
            options.out.parent.mkdir(parents=True, exist_ok=True)
            write_json(options.out, found)
            return
        remedy = "write it by 'few_cells.py measure'"
        one, other = (
            read_json(path, remedy, keys=("study", "rows")) for path in (options.one, options.other)
        )
        for line in moved(one, other):
            print(line)
    except UserError as error:
        parser.exit(2, f"{error}\n")


if __name__ == "__main__":
    main()
