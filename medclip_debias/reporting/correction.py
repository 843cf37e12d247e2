"""What a run's objective corrects, for the report: eta of each sentence, and which pairs count."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from numpy.typing import NDArray

from medclip_debias.errors import UserError
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.debiased import ETA_MAX, ConstantEta, eta_of
from medclip_debias.reporting.content import Rows, at, number
from medclip_debias.reporting.learned_from import Learned, learned
from medclip_debias.reporting.pair_classes import SAMPLE, Judged, judged
from medclip_debias.training.fields import READERS

Floats = NDArray[np.float64]
BINS = 24
SHOWN = 8
"""Sentences quoted at either end."""
MOST_POINTS = 1000


@dataclass(frozen=True)
class Correction:
    """eta of the distinct sentences that a run learned from.

    Attributes:
        texts: the sentences.
        eta: ``[T]``, as the loss takes it.
        log_prob: ``[T]`` nats; None where eta does not come from a language model.
        studies: ``[T]`` how many training studies say each.
    """

    texts: list[str]
    eta: Floats
    log_prob: Floats | None
    studies: NDArray[np.int64]

    @property
    def mean(self) -> float:
        """Mean over all occurrences: what an anchor drawn at random has."""
        return float(np.average(self.eta, weights=self.studies))

    def histogram(self) -> tuple[Floats, NDArray[np.int64], NDArray[np.int64]]:
        """Edges of `BINS` bins from 0 to the highest eta, occurrences and sentences in each."""
        edges = np.linspace(0.0, float(self.eta.max()) or 1.0, BINS + 1)
        said = np.histogram(self.eta, edges, weights=self.studies)[0].astype(np.int64)
        return edges, said, np.histogram(self.eta, edges)[0]

    def order(self) -> NDArray[np.int64]:
        """Places of the sentences, the most corrected first; of equal ones the most frequent."""
        return np.lexsort((np.array(self.texts), -self.studies, -self.eta))

    def summary(self, batch_size: int) -> list[str]:
        """What the correction amounts to, in sentences."""
        top = self.order()[: max(1, len(self.texts) // 100)]
        share = self.studies[top].sum() / self.studies.sum()
        eta, rest = self.mean, batch_size - 1
        lines = [
            "eta of a sentence is the share of other patients' images that are expected to agree"
            f" with it. In a batch of {batch_size}, with {rest} other images for each sentence, the"
            f" mean eta {eta:.3f} stands for {eta * rest:.1f} images that are no true negatives,"
            f" and the highest, {self.eta.max():.3f}, for {self.eta.max() * rest:.1f}.",
            f"{number(len(self.texts))} distinct sentences, said {number(int(self.studies.sum()))} "
            f"times by the training studies. The 1% of sentences that are corrected most "
            f"({number(len(top))}) make {share:.0%} of what is said.",
        ]
        if self.log_prob is not None:
            lines.append(
                "Rank correlation of log p with how many studies say a sentence: "
                f"{rank_correlation(self.log_prob, self.studies):.2f}. (The language model does not"
                " count sentences: it also gives a high p to one that it has seen in other words.)"
            )
        return lines

    def ends(self) -> tuple[Rows, Rows]:
        """The most and the least corrected sentences: text, eta, log p, studies."""
        order = self.order()
        count = min(SHOWN, len(order) // 2) or 1

        def rows(places: NDArray[np.int64]) -> Rows:
            return [
                [
                    self.texts[n],
                    _small(float(self.eta[n])),
                    number(None if self.log_prob is None else float(self.log_prob[n]), 1),
                    number(int(self.studies[n])),
                ]
                for n in places
            ]

        return rows(order[:count]), rows(order[::-1][:count])

    def plots(self) -> list[tuple[Markup, str, str]]:
        """Histogram of eta, and log p over frequency: plot, title, caption."""
        from medclip_debias.reporting.plots import bars, points

        edges, said, sentences = self.histogram()
        shares = [(counts / counts.sum()).tolist() for counts in (said, sentences)]
        title = "How much is corrected"
        caption = (
            "Filled: share of all occurrences of sentences, which is what the loss sees; dashed "
            "outline: share of the distinct sentences. The vertical axis is logarithmic."
        )
        label = f"Histogram of eta from 0 to {edges[-1]:.3f}, mean {self.mean:.3f}"
        drawn = bars(edges.tolist(), shares[0], label, x="eta", y="share", second=shares[1])
        result = [(drawn, title, caption)]
        if self.log_prob is not None:
            chosen = np.arange(len(self.texts))
            if len(chosen) > MOST_POINTS:
                chosen = np.sort(
                    np.random.default_rng(0).choice(chosen, MOST_POINTS, replace=False)
                )
            which = (
                f"{number(len(chosen))} of the {number(len(self.texts))} sentences, at random"
                if len(chosen) < len(self.texts)
                else f"All {number(len(chosen))} sentences"
            )
            label = "Scatter plot of log p over the number of studies that say a sentence"
            x, y = self.studies[chosen].tolist(), self.log_prob[chosen].tolist()
            drawn = points(x, y, label, titles=("studies that say it", "log p (nats)"))
            title = "log p against frequency"
            result.append((drawn, title, f"{which}. The language model's log p gives eta."))
        return result


def correction(learned: Learned) -> Correction | None:
    """eta of every sentence; None where the objective has none, or one for all.

    Raises:
        UserError: the set lacks what eta is computed from.
    """
    run = learned.run
    settings = run.core.eta
    if settings is None or isinstance(settings, ConstantEta):
        return None
    name = "log_prob" if settings.kind == "language_model" else "eta"
    values = READERS[name](run).double()
    batch: Any = ContrastiveBatch(
        torch.zeros(1, len(values), dtype=torch.float64),
        torch.tensor(1.0),
        image_of_sentence=torch.zeros(len(values), dtype=torch.int64),
        **{name: values},
    )
    plain = settings.model_copy(update={"control": "none"})
    eta = eta_of(plain, batch).clamp(0, ETA_MAX)
    log_prob = values.numpy() if name == "log_prob" else None
    return Correction(run.studies.texts, eta.numpy(), log_prob, run.studies.occurrences)


def constant(learned: Learned) -> float | None:
    """The eta of all sentences, where the objective has one for all."""
    settings = learned.run.core.eta
    return settings.value if isinstance(settings, ConstantEta) else None


def rank_correlation(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Spearman's, ties sharing their mean rank; nan where one side is constant."""
    from scipy.stats import spearmanr

    if len(a) < 2 or (a == a[0]).all() or (b == b[0]).all():
        return float("nan")
    return float(spearmanr(a, b).statistic)


def _small(value: float) -> str:
    return f"{value:.3f}" if value >= 0.0005 or value == 0 else f"{value:.0e}"


@dataclass
class CorrectionPart:
    """What the section shows.

    Attributes:
        missing: why something is not shown, in a sentence.
        lines: sentences.
        plots: plot, title and caption of each.
        ends: title and rows of the tables of sentences.
        pairs: what parts of the objective make of pairs.
        sampled: studies that those are counted over.
        quotes: it holds words of real reports.
    """

    missing: str = ""
    lines: list[str] = field(default_factory=list)
    plots: list[tuple[Any, str, str]] = field(default_factory=list)
    ends: list[tuple[str, Rows]] = field(default_factory=list)
    pairs: list[Judged] = field(default_factory=list)
    sampled: int = 0
    quotes: bool = False


def correction_part(
    folder: Path, settings: Mapping[str, Any], named: Path | None = None
) -> CorrectionPart:
    """What a run's objective corrects.

    Args:
        folder: of the run.
        settings: content of its ``settings.yaml``.
        named: the set that it learned from, as the user names it.

    Raises:
        UserError: ``named`` is not that set.
    """
    training, why = learned(folder, settings, named)
    shown = CorrectionPart(missing=why)
    if training is None:
        return shown
    try:
        _fill(shown, training, int(at(settings, "train", "batch_size") or 64))
    except (UserError, TypeError, ValueError) as error:  # settings may hold anything
        shown.missing = f"Not all can be shown. {error}"
    shown.quotes = not training.synthetic and bool(shown.ends or shown.pairs)
    return shown


def _fill(shown: CorrectionPart, training: Learned, batch_size: int) -> None:
    value = constant(training)
    if value:
        rest = batch_size - 1
        shown.lines.append(
            f"Every sentence is corrected alike: eta {value:g} stands for {value * rest:.1f} of "
            f"the {rest} other images in a batch of {batch_size}, whatever the sentence says."
        )
    eta: Correction | None = correction(training)
    if eta is not None:
        shown.lines += eta.summary(batch_size)
        shown.plots = eta.plots()
        most, least = eta.ends()
        shown.ends = [("Corrected most", most), ("Corrected least", least)]
    shown.pairs, notes = judged(training)
    shown.sampled = min(SAMPLE, len(training.run.studies))
    shown.lines += notes
    if not shown.lines and not shown.pairs:
        shown.lines.append(
            "This objective does not correct the negatives of a sentence by what they say: see the "
            "loss above."
        )
