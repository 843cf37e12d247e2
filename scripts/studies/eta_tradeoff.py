"""Figure 3 of sample-specific debiasing: constant eta against the language model's.

And the assumption behind it: how well the logarithm of a sentence's estimated probability tracks
that of its true class probability.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from medclip_debias.config import Settings
from medclip_debias.experiments.differences import by_method, mean_sd
from medclip_debias.experiments.experiment import Cell, Row, Summary, Table
from studies.phantom_data import PhantomData, PhantomFolder, learn_language
from studies.phantom_methods import Candidate, debiased, infonce
from studies.phantom_run import eta_true, training_counts
from studies.phantom_study import (
    FAMILY,
    LABELS,
    PhantomStudy,
    PhantomStudySettings,
    difference_table,
    figure_table,
    quick_settings,
    verdict,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("auc", "accuracy", "cnr", "recall")
LANGUAGE = "language model"
ESTIMATES = ("masked LM", "trigrams", "counts")


class EtaTradeoffSettings(PhantomStudySettings):
    """Constants of the sweep, shares of the sentences that estimates learn from."""

    constants: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4)
    shares: tuple[float, ...] = (0.01, 0.1, 1.0)


class EtaTradeoff(PhantomStudy):
    """Metrics over a constant eta, with the language model's beside it."""

    name: ClassVar[str] = "eta-tradeoff"
    title: ClassVar[str] = "Constant eta against the language model's"
    source: ClassVar[str] = "Sample-specific debiasing (2023), Figure 3 and section 2.3"
    settings_class: ClassVar[type[Settings]] = EtaTradeoffSettings
    about: ClassVar[str] = f"""
The debiased loss is trained with the same eta for every sentence, from 0 (InfoNCE) upwards, and
with the language model's (a = .2, k = .35, as published), on the hospital-like phantom; each seed
is a phantom, a language model and a training of its own. The paper's figure shows classification
rising and retrieval falling with eta.

The second part asks how well an estimate of a sentence's probability tracks the logarithm of its
true class probability (the share of images that agree with it): the masked language model's
pseudo-log-likelihood, a trigram model (Witten and Bell), and the plain count of the sentence,
each learned from 1, 10 and 100% of the training sentences. Spearman's rank correlation over the
training sentences, each occurrence counted, boilerplate (true of every image) left out; and the
slope of the true on the estimated log probability, which is what k would have to be. The exponent
of the trained arm is .35: its eta falls faster with the estimate than the truth does, and its mean
is about .04, where the mean true probability is about .6.

{FAMILY}
"""

    @classmethod
    def quick(cls) -> EtaTradeoffSettings:
        """Two constants, one share."""
        found: EtaTradeoffSettings = quick_settings(
            EtaTradeoffSettings, constants=(0.0, 0.1), shares=(0.1, 1.0)
        )
        return found

    def cells(self) -> list[dict[str, Any]]:
        """Trainings, then estimates."""
        s = self.settings
        arms = [
            Candidate(
                f"eta {value:g}",
                debiased({"kind": "constant", "value": value}) if value else infonce(),
            )
            for value in s.constants
        ]
        arms.append(Candidate(LANGUAGE, debiased({"kind": "language_model", "a": 0.2, "k": 0.35})))
        found = [
            self.cell(arm, seed, part="train", method=arm.label) for seed in s.seeds for arm in arms
        ]
        for seed in s.seeds:
            data = s.data.model_dump(mode="json") | {"seed": seed}
            found += [
                {"part": "estimate", "estimate": estimate, "share": share, "seed": seed}
                | {"data": data}
                for estimate in ESTIMATES
                for share in s.shares
            ]
        return found

    def seconds(self, cell: Cell) -> float:
        """A training; a language model; a count."""
        if cell["part"] == "train":
            return super().seconds(cell)
        return 60.0 if cell["estimate"] == "masked LM" else 2.0

    def measure(self, cell: Cell) -> Row:
        """Train and measure, or compare an estimate with the truth."""
        if cell["part"] == "train":
            return super().measure(cell)
        place = PhantomFolder(self.shared_folder(cell))
        return tracking(place, PhantomData(**cell["data"]), cell["estimate"], cell["share"])

    def summary(self, rows: Sequence[Row]) -> Summary:
        """The sweep, the line, the tracking."""
        groups = by_method([r for r in rows if r["part"] == "train"])
        base = next(iter(groups))
        others = [name for name in groups if name != base]
        findings = [verdict(groups, name, base, SHOWN, others) + "." for name in others]
        tracked = [r for r in rows if r["part"] == "estimate"]
        whole = max(r["share"] for r in tracked)
        said = {
            name: mean_sd([r["spearman"] for r in tracked if _is(r, name, whole)])
            for name in ESTIMATES
        }
        findings.append(
            "Rank correlation of the estimated with the true log probability, learned from all "
            "sentences, mean (sd): " + ", ".join(f"{n} {v}" for n, v in said.items()) + "."
        )
        slopes = {
            name: mean_sd([r["slope"] for r in tracked if _is(r, name, whole)])
            for name in ESTIMATES
        }
        findings.append(
            "Slope of the true on the estimated log probability, mean (sd): "
            + ", ".join(f"{n} {v}" for n, v in slopes.items())
            + "."
        )
        tables = [
            figure_table(f"Mean (sd) over {len(self.settings.seeds)} seeds", groups),
            difference_table(f"Difference to {base}", groups, base),
            _tracking_table(tracked),
        ]
        return Summary(findings, tables, {"spearman": said, "slope": slopes})

    def figure(self, rows: Sequence[Row]) -> Figure:
        """Each metric over eta with the language model's line; tracking over the share."""
        from studies.plots import labels, line, panels

        figure, axes = panels(5, [*(LABELS[m] for m in SHOWN), "tracking log eta"], rows=2)
        groups = by_method([r for r in rows if r["part"] == "train"])
        constants = list(self.settings.constants)
        for one, metric in zip(axes, SHOWN, strict=False):
            values = np.array(
                [[r[metric] for r in groups[f"eta {c:g}"].values()] for c in constants]
            )
            line(one, constants, values.mean(axis=1), 0, "constant")
            reach = values.std(axis=1, ddof=1) if values.shape[1] > 1 else 0 * values[:, 0]
            low, high = values.mean(axis=1) - reach, values.mean(axis=1) + reach
            one.fill_between(constants, low, high, color="#000000", alpha=0.12, linewidth=0)
            level = float(np.mean([r[metric] for r in groups[LANGUAGE].values()]))
            one.axhline(level, color="#D55E00", linestyle="--", linewidth=1.4, label=LANGUAGE)
            labels(one, "constant eta", LABELS[metric])
        tracked = [r for r in rows if r["part"] == "estimate"]
        shares = list(self.settings.shares)
        for style, name in enumerate(ESTIMATES):
            means = [np.mean([r["spearman"] for r in tracked if _is(r, name, v)]) for v in shares]
            line(axes[4], shares, means, style, name)
        axes[4].set_xscale("log")
        labels(axes[4], "share of the sentences learned from", "Spearman's rho")
        return figure


def _is(row: Row, estimate: str, share: float) -> bool:
    return bool(row["estimate"] == estimate and row["share"] == share)


def _tracking_table(tracked: Sequence[Row]) -> Table:
    shares = sorted({r["share"] for r in tracked})
    body = [
        [name, *(mean_sd([r["spearman"] for r in tracked if _is(r, name, v)]) for v in shares)]
        for name in ESTIMATES
    ]
    head = ["estimate", *(f"from {share:.0%}" for share in shares)]
    return Table("Spearman's rho with the true log probability, mean (sd)", head, body)


# ------------------------------------------------------------------------------- estimates


def tracking(place: PhantomFolder, data: PhantomData, estimate: str, share: float) -> Row:
    """How an estimate of the log probability goes with the truth.

    Returns:
        ``spearman`` over the training sentences by occurrence, ``slope`` of the least-squares
        line of true on estimated, and ``sentences``, how many distinct ones were judged.
    """
    from scipy.stats import spearmanr

    truth, counts = eta_true(place), training_counts(place)
    texts = [text for text, value in truth.items() if 0 < value < 1]
    estimated = _estimate(place, data, texts, estimate, share)
    times = [counts[text] for text in texts]
    x = np.repeat([estimated[text] for text in texts], times)
    y = np.repeat([math.log(truth[text]) for text in texts], times)
    slope = float(np.polyfit(x, y, 1)[0]) if np.ptp(x) > 0 else 0.0
    rho = float(spearmanr(x, y).statistic) if np.ptp(x) > 0 else 0.0
    return {"spearman": rho, "slope": slope, "sentences": len(texts)}


def _estimate(
    place: PhantomFolder, data: PhantomData, texts: list[str], estimate: str, share: float
) -> dict[str, float]:
    if estimate == "masked LM":
        return _masked_lm(place, data, texts, share)
    corpus = _some(place, data.seed, share)
    if estimate == "counts":
        times = Counter(corpus)
        return {text: math.log((times[text] + 0.5) / len(corpus)) for text in texts}
    model = Trigrams(corpus)
    return {text: model.log_probability(text) for text in texts}


def _masked_lm(
    place: PhantomFolder, data: PhantomData, texts: list[str], share: float
) -> dict[str, float]:
    import shutil
    import tempfile
    from pathlib import Path

    from medclip_debias.data.store import PreparedSet

    if share >= 1:
        scores = PreparedSet.open(place.prepared).scores(None)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            copy = Path(scratch) / "prepared"
            shutil.copytree(place.prepared, copy, ignore=shutil.ignore_patterns("scores.*"))
            part = data.model_copy(update={"language_share": share})
            learn_language(part, copy, Path(scratch) / "language_model")
            scores = PreparedSet.open(copy).scores(None)
    return {text: float(scores[text]) for text in texts}


def _some(place: PhantomFolder, seed: int, share: float) -> list[str]:
    """``share`` of the occurrences of the training sentences."""
    corpus = [text for text, count in training_counts(place).items() for _ in range(count)]
    count = max(2, round(share * len(corpus)))
    chosen = np.random.default_rng([seed, 77]).choice(len(corpus), count, replace=False)
    return [corpus[number] for number in np.sort(chosen)]


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
            padded = ["<s>", "<s>", *_words(text), "</s>"]
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
        padded = ["<s>", "<s>", *_words(text), "</s>"]
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


def _words(text: str) -> list[str]:
    return "".join(c if c.isalnum() else f" {c} " for c in text.lower()).split()
