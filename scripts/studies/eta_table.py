"""The tables of the studies by grid: eta of a stated dose, and what truly agrees.

What a debiased loss corrects by is two things: how much (the mean over all occurrences, its dose)
and for whom. Each table of the language model's eta here has a stated dose, so that sources of eta
can be compared at equal doses.

Run as ``python scripts/studies/eta_table.py PREPARED OUT --tree TREE``; writes
``lm_k{k}_m{dose}.parquet`` for every exponent and dose, ``claims`` and, with a tree, ``truth`` and
``agreement.npz`` (for ``remove_known`` and the evidence ``known``).
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path

import numpy as np

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from commands import run_script
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.text.evidence.pairs import Evidence
from medclip_debias.experiments.doses import language_eta, training_counts, write_eta
from medclip_debias.phantom.truth import Truth, write_truth

EXPONENTS = (0.05, 0.1)
DOSES = (0.05, 0.1, 0.2)
_AT_ONCE = 256  # sentences whose evidence with every study is held at once


def from_language_model(prepared: PreparedSet, exponent: float, dose: float) -> dict[str, float]:
    """``a p^k`` with the ``a`` that makes its mean over the training occurrences the dose."""
    values, counts = language_eta(prepared, 1e-6, exponent)  # never cut at 1e-6
    weights = [counts[text] for text in values]
    factor = dose / float(np.average(list(values.values()), weights=weights))
    return {text: value * factor for text, value in values.items()}


def from_claims(prepared: PreparedSet) -> dict[str, float]:
    """Share of the training studies whose report agrees with the sentence by both sides' claims."""
    evidence = Evidence.open(prepared)
    train = np.flatnonzero((prepared.studies["split"] == "train").to_numpy())
    texts = list(training_counts(prepared))
    place = {text: n for n, text in enumerate(prepared.texts)}
    shares: dict[str, float] = {}
    for start in range(0, len(texts), _AT_ONCE):
        some = texts[start : start + _AT_ONCE]
        agree = evidence.pairs(train, np.array([place[text] for text in some])) > 0
        shares.update(zip(some, agree.mean(axis=0).tolist(), strict=True))
    return shares


def main(prepared: Path, out: Path, tree: Path | None = None) -> None:
    """Write tables of eta of a stated dose for a prepared set with scores and claims."""
    opened = PreparedSet.open(prepared)
    out.mkdir(parents=True, exist_ok=True)
    tables = {
        f"lm_k{exponent}_m{dose}": from_language_model(opened, exponent, dose)
        for exponent, dose in product(EXPONENTS, DOSES)
    }
    tables["claims"] = from_claims(opened)
    if tree is not None:
        write_truth(Truth(tree), opened, out / "agreement.npz")
        texts = list(training_counts(opened))
        tables["truth"] = dict(zip(texts, Truth(tree).eta(texts).tolist(), strict=True))
    for name, values in tables.items():
        write_eta(values, out / f"{name}.parquet")
    print({"tables": list(tables)})


if __name__ == "__main__":
    sys.exit(run_script(main))
