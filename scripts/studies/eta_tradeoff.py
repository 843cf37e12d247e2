"""Figure 3 of sample-specific debiasing: constant eta against the language model's.

And the assumption behind it: how well the logarithm of a sentence's estimated probability tracks
that of its true class probability.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from scipy.stats import spearmanr

from medclip_debias.data.store import PreparedSet
from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.doses import training_counts
from medclip_debias.experiments.experiment import Cell, Row
from medclip_debias.reporting.tables import Table
from studies.phantom import LANGUAGE_MODEL, Phantom, PhantomStudy, compared, learn_language, part_of
from studies.study import spread, where


class EtaTradeoff(PhantomStudy):
    """Metrics over a constant eta, with the language model's beside it; then the estimates."""

    name: ClassVar[str] = "eta-tradeoff"

    def cells(self) -> list[dict[str, Any]]:
        s = self.settings
        etas = {f"eta {value:g}": {"kind": "constant", "value": value} for value in s.constants}
        etas[LANGUAGE_MODEL] = {"kind": "language_model", **s.eta}
        arms: dict[str, Any] = {name: {"kind": "debiased", "eta": e} for name, e in etas.items()}
        arms |= {"eta 0": {"kind": "infonce"}} if "eta 0" in arms else {}
        return self.arms(arms, s.seeds, part="train") + [
            {"part": "estimate", "estimate": estimate, "share": share, "seed": seed}
            | {"data": self.cell({}, seed)["data"]}
            for seed, estimate, share in product(s.seeds, s.estimates, s.shares)
        ]

    def measure(self, cell: Cell) -> Row:
        if cell["part"] == "train":
            return super().measure(cell)
        return tracking(self.place(cell), cell["data"], cell["estimate"], cell["share"])

    def tables(self, rows: Sequence[Row]) -> list[Table]:
        groups, tracked = by_method(where(rows, part="train")), where(rows, part="estimate")
        found = compared(f"{len(next(iter(groups.values())))} seeds", groups, next(iter(groups)))
        shares = sorted({row["share"] for row in tracked})
        for name, title in (("spearman", "Spearman's rho with"), ("slope", "Slope of")):
            body = [
                [e, *(spread(where(tracked, estimate=e, share=v), name) for v in shares)]
                for e in dict.fromkeys(row["estimate"] for row in tracked)
            ]
            head = ["estimate", *(f"from {share:.0%}" for share in shares)]
            found.append(Table(f"{title} the true log probability, mean (sd)", head, body))
        return found


def tracking(place: Phantom, data: Mapping[str, Any], estimate: str, share: float) -> Row:
    """How an estimate of the log probability goes with the truth, over sentences by occurrence.

    ``slope`` is that of the least-squares line of true on estimated.
    """
    truth, counts = place.eta_true(), training_counts(place.data)
    texts = [text for text, value in truth.items() if 0 < value < 1]
    if estimate == "masked LM":
        estimated = _masked_lm(place, data, share)
    else:
        corpus = part_of(list(Counter(counts).elements()), share, data["seed"])
        if estimate == "counts":
            seen = Counter(corpus)
            estimated = {text: math.log((seen[text] + 0.5) / len(corpus)) for text in texts}
        else:
            model = Trigrams(corpus)
            estimated = {text: model.log_probability(text) for text in texts}
    times = [counts[text] for text in texts]
    x = np.repeat([estimated[text] for text in texts], times)
    y = np.repeat([math.log(truth[text]) for text in texts], times)
    varies = np.ptp(x) > 0
    slope = float(np.polyfit(x, y, 1)[0]) if varies else 0.0
    rho = float(spearmanr(x, y).statistic) if varies else 0.0
    return {"spearman": rho, "slope": slope, "sentences": len(texts)}


def _masked_lm(place: Phantom, data: Mapping[str, Any], share: float) -> dict[str, float]:
    """Pseudo-log-likelihoods by the phantom's language model, or by one of fewer sentences."""
    if share >= 1:
        return dict(place.data.scores(None))
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "prepared"
        shutil.copytree(place.prepared, copy, ignore=shutil.ignore_patterns("scores.*"))
        part = {**data, "language_share": share}
        learn_language(part, copy, Path(scratch) / "language_model")
        return dict(PreparedSet.open(copy).scores(None))


class Trigrams:
    """Word trigrams, interpolated with shorter ones (Witten and Bell 1991).

    ``p(w | h) = (c(h w) + d(h) p(w | shorter h)) / (c(h) + d(h))`` with ``d(h)`` the number of
    different words seen after ``h``; at the bottom every known word, and one unknown, is alike.
    """

    def __init__(self, corpus: Sequence[str]) -> None:
        self._after: dict[tuple[str, ...], Counter[str]] = {}
        for padded in map(_padded, corpus):
            for place, order in product(range(2, len(padded)), range(3)):
                before = tuple(padded[place - order : place])
                self._after.setdefault(before, Counter())[padded[place]] += 1

    def log_probability(self, text: str) -> float:
        """Natural logarithm of the probability of the sentence, its end included."""
        padded = _padded(text)
        return sum(
            math.log(self.probability(padded[place], tuple(padded[place - 2 : place])))
            for place in range(2, len(padded))
        )

    def probability(self, word: str, before: tuple[str, ...]) -> float:
        """Probability of a word after two others."""
        known = self._after[()]
        lower = self.probability(word, before[1:]) if before else 1 / (len(known) + 1)
        after = self._after.get(before, Counter())
        return (after[word] + len(after) * lower) / (after.total() + len(after)) if after else lower


def _padded(text: str) -> list[str]:
    words = "".join(c if c.isalnum() else f" {c} " for c in text.lower()).split()
    return ["<s>", "<s>", *words, "</s>"]
