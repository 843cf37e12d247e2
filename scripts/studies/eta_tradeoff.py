"""Figure 3 of sample-specific debiasing: constant eta against the language model's.

And the assumption behind it: how well the logarithm of a sentence's estimated probability tracks
that of its true class probability.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from medclip_debias.data.store import PreparedSet
from medclip_debias.experiments.differences import by_method
from medclip_debias.experiments.doses import training_counts
from medclip_debias.experiments.experiment import Cell, Row
from medclip_debias.reporting.tables import Table
from studies.phantom import (
    LANGUAGE_MODEL,
    PhantomData,
    PhantomFolder,
    PhantomStudy,
    compared,
    eta_true,
    learn_language,
    part_of,
)
from studies.study import spread, where


class EtaTradeoff(PhantomStudy):
    """Metrics over a constant eta, with the language model's beside it; then the estimates."""

    name: ClassVar[str] = "eta-tradeoff"

    def cells(self) -> list[dict[str, Any]]:
        s = self.settings
        arms: dict[str, Any] = {
            f"eta {value:g}": {"kind": "debiased", "eta": {"kind": "constant", "value": value}}
            if value
            else {"kind": "infonce"}
            for value in s.constants
        }
        arms[LANGUAGE_MODEL] = {"kind": "debiased", "eta": {"kind": "language_model", **s.eta}}
        trained = [
            self.cell(loss, seed, part="train", method=name, candidate=name)
            for seed, (name, loss) in product(s.seeds, arms.items())
        ]
        return trained + [
            {"part": "estimate", "estimate": estimate, "share": share, "seed": seed}
            | {"data": self.cell({}, seed)["data"]}
            for seed, estimate, share in product(s.seeds, s.estimates, s.shares)
        ]

    def measure(self, cell: Cell) -> Row:
        if cell["part"] == "train":
            return super().measure(cell)
        place = PhantomFolder(self.shared_folder(cell))
        return tracking(place, PhantomData(**cell["data"]), cell["estimate"], cell["share"])

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


def tracking(place: PhantomFolder, data: PhantomData, estimate: str, share: float) -> Row:
    """How an estimate of the log probability goes with the truth, over sentences by occurrence.

    ``slope`` is that of the least-squares line of true on estimated.
    """
    from scipy.stats import spearmanr

    truth, counts = eta_true(place), training_counts(place.open())
    texts = [text for text, value in truth.items() if 0 < value < 1]
    if estimate == "masked LM":
        estimated = _masked_lm(place, data, share)
    else:
        every = [text for text, count in counts.items() for _ in range(count)]
        corpus = part_of(every, share, data.seed)
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


def _masked_lm(place: PhantomFolder, data: PhantomData, share: float) -> dict[str, float]:
    """Pseudo-log-likelihoods by the phantom's language model, or by one of fewer sentences."""
    if share >= 1:
        return dict(place.open().scores(None))
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "prepared"
        shutil.copytree(place.prepared, copy, ignore=shutil.ignore_patterns("scores.*"))
        part = data.model_copy(update={"language_share": share})
        learn_language(part, copy, Path(scratch) / "language_model")
        return dict(PreparedSet.open(copy).scores(None))


class Trigrams:
    """Word trigrams, interpolated with shorter ones (Witten and Bell 1991).

    ``p(w | h) = (c(h w) + d(h) p(w | shorter h)) / (c(h) + d(h))`` with ``d(h)`` the number of
    different words seen after ``h``; at the bottom every known word, and one unknown, is alike.
    """

    def __init__(self, corpus: Sequence[str]) -> None:
        self._count: Counter[tuple[str, ...]] = Counter()
        self._after: dict[tuple[str, ...], set[str]] = {}
        self._total: Counter[tuple[str, ...]] = Counter()
        words = set()
        for text in corpus:
            padded = _padded(text)
            words.update(padded[2:])
            for place in range(2, len(padded)):
                for order in range(3):
                    before = tuple(padded[place - order : place])
                    self._count[(*before, padded[place])] += 1
                    self._total[before] += 1
                    self._after.setdefault(before, set()).add(padded[place])
        self._words = len(words) + 1

    def log_probability(self, text: str) -> float:
        """Natural logarithm of the probability of the sentence, its end included."""
        padded = _padded(text)
        return sum(
            math.log(self._probability(padded[place], tuple(padded[place - 2 : place])))
            for place in range(2, len(padded))
        )

    def _probability(self, word: str, before: tuple[str, ...]) -> float:
        lower = self._probability(word, before[1:]) if before else 1 / self._words
        kinds = len(self._after.get(before, ()))
        if not kinds:
            return lower
        return (self._count[(*before, word)] + kinds * lower) / (self._total[before] + kinds)


def _padded(text: str) -> list[str]:
    words = "".join(c if c.isalnum() else f" {c} " for c in text.lower()).split()
    return ["<s>", "<s>", *words, "</s>"]
