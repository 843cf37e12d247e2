"""Differences of arms over seeds, from the outcomes of a study on real films.

    python scripts/studies/real_seeds.py docs/studies/correction_seeds.csv [--base ARM]

Prints, for each outcome, the base's mean over the seeds, and for each other arm the difference to
it with 95% by t over the seeds that both have. A star: p of at most .05 after Holm's correction
over all arms that have every outcome. Films are the same in each seed; how much another sample of
them would change is not in these intervals.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from commands import exit_code
from medclip_debias.data.sources.tables import read_table
from medclip_debias.experiments.differences import Difference, SeedTables


def differences(outcomes: pd.DataFrame, base: str) -> dict[str, dict[str, Difference]]:
    """Each arm minus ``base``, by outcome and arm.

    ``outcomes`` has a column for each outcome, by arm and seed; blank where an arm has none. Arms
    that lack one are no part of the family, and have no p.
    """
    arms = {str(arm): own.droplevel("arm") for arm, own in outcomes.groupby(level="arm")}
    lacking = {arm for arm, own in arms.items() if own.isna().any(axis=None)}
    found: dict[str, dict[str, Difference]] = {str(name): {} for name in outcomes}
    for names in (arms.keys() - lacking, *({arm} for arm in lacking)):
        kept = [str(name) for name in outcomes if arms[max(names)][name].notna().all()]
        rows: Any = {arm: own[kept].to_dict("index") for arm, own in arms.items()}
        pairs = {arm: (rows[arm], rows[base]) for arm in arms if arm in names and arm != base}
        for name, of_arm in SeedTables({}).contrasts(pairs, kept).items():
            for arm, (gap, ends, p) in of_arm.items():
                found[name][arm] = gap, ends, np.nan if arm in lacking else p
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", type=Path)
    parser.add_argument("--base", default="infonce")
    options = parser.parse_args()
    read_table(options.csv, ("arm", "seed"))  # a file that is none is refused in a sentence
    outcomes = pd.read_csv(options.csv).set_index(["arm", "seed"]).sort_index()
    if options.base not in outcomes.index:
        known = ", ".join(outcomes.index.get_level_values("arm").unique())
        parser.error(f"{options.csv}: has no arm '{options.base}'; it has {known}")
    tables = SeedTables({})
    for name, of_arm in differences(outcomes, options.base).items():
        mean = outcomes.loc[options.base, name].mean()
        middle = np.median([(ends[1] - ends[0]) / 2 for _, ends, _ in of_arm.values() if ends])
        print(f"{name}: {options.base} {mean:.3f}; half of an interval {middle:.3f} (median)")
        for arm in sorted(of_arm):
            print(f"  {arm:26} {tables.cell(name, of_arm[arm])}")


if __name__ == "__main__":
    sys.exit(exit_code(main))
