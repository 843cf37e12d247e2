"""What claims of some findings do for classes of others: arms of a study on real films.

    python scripts/studies/real_halves.py OUT [--arms FILE] [--seeds N ...]

An arm whose claims are of chosen findings is judged on the classes whose prompts claim none of
these, nor a finding that implies one or is implied by it. Prints, for each such arm and judged
set, AUC of both prompts over these classes minus that of the study's first arm, over patients and
seeds, and the same for the arm ``positives``, whose claims are of all findings.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Collection
from pathlib import Path

import pandas as pd

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from commands import exit_code
from medclip_debias.data.prompts import PromptSet, load_prompts
from medclip_debias.data.text.claims.rules import RuleParser
from medclip_debias.evaluation.compare import compare
from studies.real_arms import PROMPTS, read_study, whole_cells

ALL_FINDINGS = "positives"
"""The arm that every other one is read beside."""


def unknown_classes(prompts: PromptSet, chosen: Collection[str]) -> list[str]:
    """Classes of a prompt set of which claims of the findings ``chosen`` tell nothing.

    A class whose prompts claim no finding of the lexicon ("No Finding") is in no such list.

    >>> unknown_classes(load_prompts("chexpert"), ["pleural_effusion"])[:2]
    ['Atelectasis', 'Cardiomegaly']
    """
    parser = RuleParser()
    lexicon, unknown = parser.lexicon, []
    related = {name for f in chosen for name in lexicon.ancestors[f] | lexicon.descendants[f]}
    for name, sides in prompts.classes.items():
        findings = {c.finding for text in sides.positive for c in parser.parse(text).claims}
        if findings and not findings & related:
            unknown.append(name)
    return unknown


def cut_to(cell: Path, classes: Collection[str], out: Path) -> int:
    """Write a copy of a cell whose zero-shot items have ``classes`` alone; how many it has."""
    shutil.copytree(cell, out)
    path = out / "items" / "zero_shot.parquet"
    items = pd.read_parquet(path)
    columns = [
        c for c in map(str, items) if c in ("item", "patient") or c.split(".", 1)[-1] in classes
    ]
    items[columns].to_parquet(path, index=False)
    return sum(column.startswith("label.") for column in columns)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder of the study, with its cells")
    parser.add_argument("--arms", type=Path, default=Path("configs/studies/real_correction.yaml"))
    parser.add_argument("--seeds", type=int, nargs="+", help="only these of the study's; all")
    options = parser.parse_args()
    study, out = read_study(options), options.out
    done = whole_cells(out, study)
    first = next(iter(study["arms"]))
    judged = [a for a, keys in study["outcomes"].items() if any("zero_shot" in k for k in keys)]
    rows = []
    for arm, settings in study["arms"].items():
        findings = settings.get("claims", {}).get("finding")
        for archive in judged if findings and arm in done else ():
            compared = [first, arm, ALL_FINDINGS]
            seeds = sorted(set.intersection(*(set(done[name]) for name in compared)))
            known = {"archive": archive, "claims of": arm, "classes": 0, "seeds": len(seeds)}
            names = unknown_classes(load_prompts(PROMPTS.get(archive, "chestxray14")), findings)
            with tempfile.TemporaryDirectory() as folder:
                groups = []
                for name in compared:
                    places = [Path(folder) / name / f"{seed}" for seed in seeds]
                    for seed, place in zip(seeds, places, strict=True):
                        cell = out / "cells" / archive / name / f"{seed}"
                        known["classes"] = cut_to(cell, names, place)
                    groups.append(f"{name}=" + ",".join(map(str, places)))
                metrics = ["zero_shot.mean_auc"]
                row = compare([], named=groups, metrics=metrics, force=True)["rows"][0]
            for name in compared[1:]:
                group, base = row["groups"][name], row["groups"][first]["value"]
                low, high = group["difference_interval"]
                own = {"arm": name, first: base, "minus": group["difference"]}
                rows.append(known | own | {"low": low, "high": high})
    print(pd.DataFrame(rows).round(3).to_string(index=False))


if __name__ == "__main__":
    sys.exit(exit_code(main))
