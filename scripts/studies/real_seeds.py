"""Differences of arms over seeds, from the outcomes of a study on real films.

    python scripts/studies/real_seeds.py docs/studies/correction_seeds.csv [--base ARM]

Prints, for each outcome, the base's mean over the seeds, and for each other arm the difference to
it with 95% by t over the seeds that both have. A star: p < .05 after Holm's correction over all
arms that have every outcome. Films are the same in each seed; how much another sample of them
would change is not in these intervals.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
from scipy import stats


def differences(outcomes: pd.DataFrame, base: str) -> pd.DataFrame:
    """Mean, half of the 95% interval and Holm's p of each arm minus ``base``, for each outcome.

    Args:
        outcomes: a column for each outcome, by arm and seed; blank where an arm has none.
        base: the arm that the others are compared with.
    """
    from medclip_debias.evaluation.statistics import holm

    rows = []
    for arm in outcomes.index.get_level_values("arm").unique().drop(base):
        gaps = outcomes.loc[arm] - outcomes.loc[base]
        for name, gap in gaps.items():
            if (known := gap.dropna()).empty:
                continue
            error, free = stats.sem(known), len(known) - 1
            p = 2 * stats.t.sf(abs(known.mean()) / error, free)
            half = stats.t.ppf(0.975, free) * error
            whole = bool(gaps.notna().all(axis=None))
            rows.append((arm, name, free + 1, known.mean(), half, p if whole else None))
    table = pd.DataFrame(rows, columns=["arm", "outcome", "seeds", "difference", "half", "p"])
    table["p_holm"] = holm([None if pd.isna(p) else float(p) for p in table["p"]])
    return table


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--base", default="infonce")
    options = parser.parse_args()
    outcomes = pd.read_csv(options.csv).set_index(["arm", "seed"]).sort_index()
    if options.base not in outcomes.index:
        known = ", ".join(outcomes.index.get_level_values("arm").unique())
        parser.error(f"{options.csv}: has no arm '{options.base}'; it has {known}")
    table = differences(outcomes, options.base)
    for name, part in table.groupby("outcome", sort=False):
        mean, middle = outcomes.loc[options.base, name].mean(), np.median(part["half"])
        print(f"{name}: {options.base} {mean:.3f}; half of an interval {middle:.3f} (median)")
        for arm, gap, half, p in part[["arm", "difference", "half", "p_holm"]].to_numpy():
            star = " *" if p is not None and p < 0.05 else ""
            print(f"  {arm:26} {gap:+.3f} [{gap - half:+.3f}, {gap + half:+.3f}]{star}")


if __name__ == "__main__":
    main()
