"""Differences of arms over seeds, from the outcomes of a study on real films.

    python scripts/studies/real_seeds.py docs/studies/correction_seeds.csv [--base ARM]

Prints, for each outcome, the base's mean over the seeds, and for each other arm the difference to
it with 95% by t over the seeds that both have. A star: p of at most .05 after Holm's correction
over all arms that have every outcome. Films are the same in each seed; how much another sample of
them would change is not in these intervals.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pandas as pd

from medclip_debias.evaluation.statistics import ALPHA, holm, paired_seeds


def differences(outcomes: pd.DataFrame, base: str) -> pd.DataFrame:
    """Mean, half of the 95% interval and Holm's p of each arm minus ``base``, for each outcome.

    Args:
        outcomes: a column for each outcome, by arm and seed; blank where an arm has none.
        base: the arm that the others are compared with.
    """
    rows = []
    for arm in outcomes.index.get_level_values("arm").unique().drop(base):
        whole = bool((outcomes.loc[arm] - outcomes.loc[base]).notna().all(axis=None))
        for name in outcomes:
            one, other = (
                {int(seed): float(value) for seed, value in outcomes[name][side].dropna().items()}
                for side in (arm, base)
            )
            if found := paired_seeds(one, other):
                gap, (_, high), p, _ = found
                seeds = len(one.keys() & other.keys())
                rows.append((arm, name, seeds, gap, high - gap, p if whole else None))
    table = pd.DataFrame(rows, columns=["arm", "outcome", "seeds", "difference", "half", "p"])
    table["p_holm"] = holm(table["p"].tolist())
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
            star = " *" if p is not None and p <= ALPHA else ""
            print(f"  {arm:26} {gap:+.3f} [{gap - half:+.3f}, {gap + half:+.3f}]{star}")


if __name__ == "__main__":
    main()
