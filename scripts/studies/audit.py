"""What the published cells say about the studies themselves: doses, noise, families, epochs.

``python scripts/studies/audit.py`` reads ``docs/studies/*.json`` and prints the figures that
"Corrections" in docs/studies/index.md quotes, each with the number of its point there. Nothing is
trained.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

if __name__ == "__main__":
    # As a package of its own: its modules' names are too common for the top level.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from medclip_debias.experiments.differences import SeedTables, by_method
from medclip_debias.experiments.experiment import Row
from medclip_debias.experiments.variance import variance_parts
from medclip_debias.files import read_json
from studies.false_negatives import CONTROLS
from studies.phantom_methods import BASELINE, LANGUAGE_MODEL
from studies.phantom_study import LABELS, SHOWN, mean_dose
from studies.phantom_study import METRICS as DECLARED

TABLES = SeedTables(DECLARED, SHOWN)
PUBLISHED = Path(__file__).resolve().parents[2] / "docs/studies"


def published(folder: Path, name: str) -> dict[str, Any]:
    """The content of a study's published results."""
    keys = ("settings", "rows", "figures")
    return read_json(folder / f"{name}.json", "publish the study again", keys=keys)


def doses(groups: Mapping[Any, Mapping[int, Row]]) -> dict[str, float]:
    """Mean eta at the end of training of the language model and of each control (point 2)."""
    return {name: mean_dose(groups[name]) for name in (LANGUAGE_MODEL, *CONTROLS)}


def epochs(settings: Mapping[str, Any]) -> tuple[int, float]:
    """Training studies of a phantom, and how often a training sees each (point 5)."""
    from medclip_debias.phantom.settings import PhantomSettings

    data, train = settings["data"], settings["train"]
    sizes = PhantomSettings(studies=data["studies"], test_studies=data["test_studies"])
    count = sizes.counts()["train"]
    return count, train["steps"] / (count // train["batch_size"])


def stars(
    groups: Mapping[Any, Mapping[int, Row]], baseline: Any
) -> tuple[list[str], list[str], int]:
    """Which differences to ``baseline`` have p < .05 after Holm's correction (point 8).

    Returns:
        Those of a correction over the methods alone, those of one over methods and metrics (each
        as ``method: metric``), and how many differences the second is over.
    """
    pairs = {name: (own, groups[baseline]) for name, own in groups.items() if name != baseline}
    whole = TABLES.contrasts(pairs, SHOWN)
    alone = {metric: TABLES.contrasts(pairs, [metric])[metric] for metric in SHOWN}

    def below(found: Mapping[str, Mapping[Any, Any]]) -> list[str]:
        return [f"{n}: {LABELS[m]}" for n in pairs for m in SHOWN if found[m][n][2] < 0.05]

    tested = sum(not np.isnan(p) for own in whole.values() for _, _, p in own.values())
    return below(alone), below(whole), tested


def halves(own: Mapping[int, Row], metric: str) -> tuple[float, float]:
    """Mean of a metric over the lower and the upper half of the seeds (point 8)."""
    seeds = sorted(own)
    middle = len(seeds) // 2
    first, second = (
        float(np.mean([own[s][metric] for s in part])) for part in (seeds[:middle], seeds[middle:])
    )
    return first, second


def lines(folder: Path) -> list[str]:
    """Every recomputed figure, a line each."""
    few = published(folder, "false-negatives")
    long, table = published(folder, "training-length"), published(folder, "table1")
    tradeoff = published(folder, "eta-tradeoff")
    trained = [row for row in few["rows"] if row["part"] == "train"]
    families: dict[str, dict[Any, dict[int, Row]]] = {"false-negatives": by_method(trained)}
    for steps in sorted({row["steps"] for row in long["rows"]}):
        own = [row for row in long["rows"] if row["steps"] == steps]
        families[f"training-length, {steps} steps"] = by_method(own)
    for regime in table["settings"]["regimes"]:
        own = [r for r in table["rows"] if (r["role"], r["regime"]) == ("report", regime)]
        families[f"table1, {regime}"] = by_method(own)
    said = []
    for name, groups in families.items():
        each = ", ".join(f"{arm} {dose:.4f}" for arm, dose in doses(groups).items())
        said.append(f"2 mean eta, {name}: {each}")
    for metric in ("auc", "recall"):
        parts = variance_parts(trained, metric)
        assert parts is not None
        share = parts.seed / (parts.seed + parts.rest)
        said.append(
            f"3 {LABELS[metric]}, false-negatives: correlation of methods over seeds "
            f"{parts.correlation:+.2f}, seed's share of the variance {share:.0%}, trainings of "
            f"each method and seed {parts.replicates}"
        )
    for name, groups in families.items():
        if name.startswith("training-length"):
            left = np.mean([row["measured loss"] for row in groups[BASELINE].values()])
            chance = np.log(long["settings"]["train"]["batch_size"])
            said.append(f"4 loss of {BASELINE}, {name}: {left:.3f}, of chance {chance:.3f}")
    data, (count, often) = few["settings"]["data"], epochs(few["settings"])
    said.append(
        f"5 of {data['studies']} studies {data['test_studies']} are for testing and {count} for "
        f"training; {few['settings']['train']['steps']} steps are {often:.0f} epochs"
    )
    dose = mean_dose(families["false-negatives"][LANGUAGE_MODEL])
    said.append(
        f"6 mean eta of the language model (a .2, k .35) {dose:.3f}, mean true probability "
        f"{few['figures']['rate']:.3f}"
    )
    slopes = _slopes(tradeoff["rows"])
    said.append("6 slope of log true eta on the estimate: " + ", ".join(slopes))
    low, high = halves(families["false-negatives"][BASELINE], "auc")
    said.append(f"8 AUC of {BASELINE}, false-negatives: seeds 0 to 4 {low:.3f}, 5 to 9 {high:.3f}")
    for name, groups in families.items():
        alone, whole, tested = stars(groups, BASELINE)
        said.append(
            f"8 {name}: {len(alone)} differences by metric, {len(whole)} of the {tested} of the "
            f"family: {'; '.join(whole) or 'none'}"
        )
    return said


def _slopes(rows: Sequence[Row]) -> list[str]:
    tracked = [row for row in rows if row["part"] == "estimate" and row["share"] == 1]
    names = dict.fromkeys(row["estimate"] for row in tracked)
    return [
        f"{name} {np.mean([r['slope'] for r in tracked if r['estimate'] == name]):.3f}"
        for name in names
    ]


def main(words: Sequence[str] | None = None) -> None:
    """Print `lines`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", nargs="?", type=Path, default=PUBLISHED)
    print("\n".join(lines(parser.parse_args(words).folder)))


if __name__ == "__main__":
    main()
