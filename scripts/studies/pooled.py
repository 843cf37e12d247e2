"""One difference over the seeds of several grids on the same data: mean, interval, seeds above 0.

Run as ``python scripts/studies/pooled.py METHOD AGAINST FOLDER ... [--metric KEY]``. The 95%
interval is Student's over seeds; the patients are the same for all, and it does not cover them.
The last line gives p of the difference in each grid, patients and seeds covered, after Holm's
correction over every tested difference of all the grids together.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from medclip_debias.errors import UserError
from medclip_debias.evaluation.statistics import holm
from medclip_debias.evaluation.table import Results, read_results
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


def student(differences: Sequence[float]) -> tuple[float, float]:
    """Student's 95% interval of the mean of two or more values."""
    from scipy.stats import t

    count = len(differences)
    half = float(t.ppf(0.975, count - 1)) * stdev(differences) / count**0.5
    return mean(differences) - half, mean(differences) + half


def in_one_family(
    grids: Sequence[Sequence[dict[str, Any]]], method: str, against: str, metric: str
) -> tuple[list[float], int]:
    """p of the difference in each grid that tests it, and how many differences the family has.

    Args:
        grids: the ``contrasts`` of each.
        method: of the difference.
        against: what it is compared with.
        metric: key of the outcome.
    """
    tested = [one for contrasts in grids for one in contrasts if one["p"] is not None]
    wanted = (method, against, metric)
    corrected = zip(tested, holm([one["p"] for one in tested]), strict=True)
    found = [p for one, p in corrected if (one["method"], one["against"], one["metric"]) == wanted]
    return found, len(tested)


def results_of(folder: Path) -> dict[str, Any]:
    """What a grid left.

    Raises:
        UserError: the folder holds no results of a grid.
    """
    results = read_json(folder / "results.json", "run 'medclip-debias experiment' to write it")
    if "rows" not in results or "contrasts" not in (results.get("figures") or {}):
        raise UserError(f"{folder}/results.json: holds no grid of 'medclip-debias experiment'.")
    return results


def read_evaluation(path: Path) -> Results:
    """What the evaluation of a grid's cell left.

    Raises:
        UserError: it is gone or damaged.
    """
    if not path.is_file():
        why = "run the grid's experiment again, which measures what is gone"
        raise UserError(f"{path}: is missing; {why}.")
    return read_results(path)


def main() -> None:
    """Read the command line, print two lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("method")
    parser.add_argument("against")
    parser.add_argument("folders", type=Path, nargs="+", help="of grids")
    parser.add_argument("--metric", default=MAIN)
    options = parser.parse_args()
    try:
        results = [results_of(folder) for folder in options.folders]
        wanted = (options.method, options.against, options.metric)
        found = paired([one["rows"] for one in results], *wanted)
    except UserError as error:
        parser.exit(2, f"{error}\n")
    (low, high), count = student(found), len(found)
    above = sum(each > 0 for each in found)
    print(
        f"{options.method} minus {options.against}, {options.metric}: {mean(found):+.3f} "
        f"[{low:+.3f}, {high:+.3f}], above 0 in {above} of {count} seeds"
    )
    each, family = in_one_family([one["figures"]["contrasts"] for one in results], *wanted)
    said = ", ".join(f"{p:.3f}" for p in each)
    print(f"all {family} differences of these grids as one family: p {said}")


if __name__ == "__main__":
    main()
