"""One difference over the seeds of several grids on the same data: mean, interval, seeds above 0.

Run as ``python scripts/studies/pooled.py METHOD AGAINST FOLDER ... [--metric KEY]``. The 95%
interval is Student's over seeds; the patients are the same for all, and it does not cover them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from medclip_debias.errors import UserError
from medclip_debias.files import read_json

MAIN = "zero_shot.mean_auc"


def paired(
    grids: Sequence[Sequence[dict[str, Any]]], method: str, against: str, metric: str
) -> list[float]:
    """``method`` minus ``against`` in each seed, in the order of seeds.

    Raises:
        UserError: a seed is in two grids, or fewer than two have both methods.
    """
    values: dict[tuple[str, int], float] = {}
    for rows in grids:
        for row in rows:
            if row["method"] in (method, against):
                key = (row["method"], int(row["seed"]))
                if key in values:
                    raise UserError(f"seed {key[1]} of '{key[0]}' is in two of the grids.")
                values[key] = float(row["metrics"][metric])
    seeds = sorted({s for m, s in values if m == method} & {s for m, s in values if m == against})
    if len(seeds) < 2:
        raise UserError(f"fewer than two seeds have both '{method}' and '{against}'.")
    return [values[method, seed] - values[against, seed] for seed in seeds]


def main() -> None:
    """Read the command line, print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method")
    parser.add_argument("against")
    parser.add_argument("folders", type=Path, nargs="+", help="of grids")
    parser.add_argument("--metric", default=MAIN)
    options = parser.parse_args()
    from scipy.stats import t

    try:
        grids = [
            read_json(folder / "results.json", "run 'medclip-debias experiment' to write it")[
                "rows"
            ]
            for folder in options.folders
        ]
        found = paired(grids, options.method, options.against, options.metric)
    except UserError as error:
        parser.exit(2, f"{error}\n")
    middle, count = mean(found), len(found)
    half = float(t.ppf(0.975, count - 1)) * stdev(found) / count**0.5
    above = sum(each > 0 for each in found)
    print(
        f"{options.method} minus {options.against}, {options.metric}: {middle:+.3f} "
        f"[{middle - half:+.3f}, {middle + half:+.3f}], above 0 in {above} of {count} seeds"
    )


if __name__ == "__main__":
    main()
