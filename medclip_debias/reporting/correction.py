"""What a run's objective corrects, for the report: eta of each sentence, and which pairs count.

A run's folder may come from somebody else, and its settings name a folder of one's own. So a set
of real reports is read only if the user names it; a synthetic one has no patient to protect. Pairs
are counted over a sample of training studies, each with one of its sentences, as a batch has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from medclip_debias.data.loader import TrainingStudies
from medclip_debias.data.store import PreparedSet
from medclip_debias.errors import UserError, explained
from medclip_debias.losses.batch import FIELDS, ContrastiveBatch
from medclip_debias.losses.debiased import ETA_MAX, ConstantEta, eta_of
from medclip_debias.losses.multi_positive import MultiPositive
from medclip_debias.losses.objective import build_objective, loss_settings
from medclip_debias.losses.policies.evidence import WeighByEvidence
from medclip_debias.losses.policy import LateStart, Policy
from medclip_debias.reporting.content import Rows, at, number
from medclip_debias.reporting.plots import bars, points
from medclip_debias.training.fields import READERS, BatchFields, RunData, setting_of

BINS = 24
SHOWN = 8
"""Sentences quoted at either end."""
MOST_POINTS = 1000
_NOT_SHOWN = "Which sentences are corrected is not shown"


@dataclass
class Correction:
    """What the section shows."""

    missing: str = ""
    batch_size: int = 64
    constant: float = 0.0  # eta of every sentence alike
    eta: dict[str, Any] | None = None  # or what the sentences' own amount to
    plots: list[tuple[Any, str, str]] = field(default_factory=list)
    ends: list[tuple[str, Rows]] = field(default_factory=list)
    pairs: list[PairClasses] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sampled: int = 0
    quotes: bool = False  # words of real reports


def correction_part(
    folder: Path, settings: Mapping[str, Any], named: Path | None = None
) -> Correction:
    """What a run's objective corrects; ``named`` is the prepared set that the user names."""
    run, missing = learned(folder, settings, named)
    part = Correction(missing)
    if run is None:
        return part
    try:
        part.batch_size = int(at(settings, "train", "batch_size") or 64)
        eta, table = setting_of(run.settings, "eta")[0], eta_of_sentences(run)
        if isinstance(eta, ConstantEta):
            part.constant = eta.value
        if table is not None:
            _fill(part, table)
        part.pairs, part.notes = pair_classes(run)
        part.sampled = min(SAMPLE, len(run.studies))
    except (UserError, TypeError, ValueError) as error:  # settings may hold anything
        part.missing = f"Not all can be shown. {error}"
    part.quotes = not run.prepared.meta.get("synthetic") and bool(part.ends or part.pairs)
    return part


def learned(
    folder: Path, settings: Mapping[str, Any], named: Path | None
) -> tuple[RunData | None, str]:
    """What a run learned from and by which objective, or why that is not known."""
    remedy = f"run 'medclip-debias report {folder} --prepared DIR'"
    if not settings:
        return None, (
            "This folder holds an evaluation, not a training run (no settings.yaml), so it is not "
            "known what was corrected."
        )
    if isinstance(settings.get("prepared"), list):
        return None, f"{_NOT_SHOWN} of a run on several prepared sets."
    wanted = at(settings, "provenance", "data_hash")
    path = named or Path(str(settings.get("prepared")))
    try:
        prepared = PreparedSet.open(path)
        if prepared.content_hash != wanted:
            raise UserError(
                f"{path}: is not the set that {folder} learned from; give that one in --prepared."
            )
    except UserError:
        if named is not None:
            raise
        return None, (
            f"{_NOT_SHOWN}: the prepared set that the run names no longer exists, is damaged or has"
            f" been replaced by another; {remedy}."
        )
    if named is None and not prepared.meta.get("synthetic"):
        return None, (
            f"{_NOT_SHOWN}: the run learned from real reports, whose words this page shows only if"
            " you ask for them. To show them, and to share the page only as you may share the"
            f" reports, {remedy}."
        )
    where = str(folder / "settings.yaml")
    wrong = (AttributeError, KeyError, TypeError, ValueError)
    try:
        with explained(f"{where}: holds other values than 'train' writes", *wrong):
            loss = loss_settings(settings.get("loss") or {}, where)
            text = at(settings, "model", "text", "folder")
            two_view = at(settings, "train", "task") == "two_view"
            return RunData(
                objective=build_objective(loss),
                settings=loss,
                prepared=prepared,
                studies=TrainingStudies.of(prepared, text=not two_view),
                text_folder=Path(text) if text else None,
                max_tokens=int(at(settings, "model", "text", "max_tokens") or 64),
                device=torch.device("cpu"),
                where=where,
            ), ""
    except UserError as error:
        return None, f"{_NOT_SHOWN}. {str(error).rstrip('.')}."


def _fill(part: Correction, table: pd.DataFrame) -> None:
    """What the eta of each sentence amounts to; the most corrected first."""
    # Of equal ones the most frequent first.
    ranked = table.sort_values(["eta", "studies", "text"], ascending=[False, False, True])
    top, occurrences = ranked.head(max(1, len(table) // 100)), int(table["studies"].sum())
    part.eta = {
        "mean": _mean_eta(table),
        "highest": float(table["eta"].max()),
        "sentences": len(table),
        "said": occurrences,
        "top": len(top),
        "top_share": float(top["studies"].sum() / occurrences),
        "rank": None,
    }
    if "log_prob" in table:
        part.eta["rank"] = table["log_prob"].corr(table["studies"], method="spearman")
    part.plots = _eta_plots(table)
    rows = [
        [
            row["text"],
            f"{row['eta']:.3f}" if row["eta"] >= 0.0005 or not row["eta"] else f"{row['eta']:.0e}",
            number(row.get("log_prob"), 1),
            number(row["studies"]),
        ]
        for row in ranked.to_dict("records")
    ]
    count = min(SHOWN, len(rows) // 2) or 1
    part.ends = [("Corrected most", rows[:count]), ("Corrected least", rows[::-1][:count])]


# ------------------------------------------------------------------------- eta of sentences


def eta_of_sentences(run: RunData) -> pd.DataFrame | None:
    """text, eta, studies (and log_prob in nats) of each sentence; None where eta is one for all."""
    settings = setting_of(run.settings, "eta")[0]
    if settings is None or isinstance(settings, ConstantEta):
        return None
    name = "log_prob" if settings.kind == "language_model" else "eta"
    values = READERS[name](run).double()
    batch = ContrastiveBatch(
        torch.zeros(1, len(values), dtype=torch.float64),
        torch.tensor(1.0),
        image_of_sentence=torch.zeros(len(values), dtype=torch.int64),
        **{name: values},
    )
    eta = eta_of(settings.model_copy(update={"control": "none"}), batch).clamp(0, ETA_MAX)
    columns = {"text": run.studies.texts, "eta": eta.numpy(), "studies": run.studies.occurrences}
    table = pd.DataFrame(columns)
    return table.assign(log_prob=values.numpy()) if name == "log_prob" else table


def _mean_eta(table: pd.DataFrame) -> float:
    return float(np.average(table["eta"], weights=table["studies"]))


def _eta_plots(table: pd.DataFrame) -> list[tuple[Any, str, str]]:
    """Histogram of eta, and log p over frequency: plot, title, caption."""
    edges = np.linspace(0.0, float(table["eta"].max()) or 1.0, BINS + 1)
    shares = [
        (np.histogram(table["eta"], edges, weights=weights)[0] / weights.sum()).tolist()
        for weights in (table["studies"], np.ones(len(table)))
    ]
    label = f"Histogram of eta from 0 to {edges[-1]:.3f}, mean {_mean_eta(table):.3f}"
    caption = (
        "Filled: share of all occurrences of sentences, which is what the loss sees; dashed "
        "outline: share of the distinct sentences. The vertical axis is logarithmic."
    )
    plot = bars(edges.tolist(), shares[0], label, x="eta", y="share", second=shares[1])
    plots: list[tuple[Any, str, str]] = [(plot, "How much is corrected", caption)]
    if "log_prob" in table:
        chosen, which = table, f"All {number(len(table))} sentences"
        if len(table) > MOST_POINTS:
            rng = np.random.default_rng(0)
            chosen = table.iloc[np.sort(rng.choice(len(table), MOST_POINTS, replace=False))]
            which = f"{number(MOST_POINTS)} of the {number(len(table))} sentences, at random"
        label = "Scatter plot of log p over the number of studies that say a sentence"
        titles = ("studies that say it", "log p (nats)")
        plot = points(chosen["studies"].tolist(), chosen["log_prob"].tolist(), label, titles)
        caption = f"{which}. The language model's log p gives eta."
        plots.append((plot, "log p against frequency", caption))
    return plots


SAMPLE = 256
"""Studies, and so sentences: 65,280 pairs."""
EXAMPLES = 3
_LONGEST = 240


@dataclass(frozen=True)
class PairClasses:
    """What one part of an objective makes of the pairs of the sample, with examples."""

    title: str
    rows: Rows
    examples: Rows


@dataclass(frozen=True)
class Sample:
    """Studies drawn at random, a sentence of each, and all that the objective asks about them."""

    studies: TrainingStudies
    texts: list[int]
    batch: ContrastiveBatch

    def report(self, study: int) -> str:
        """All sentences of a study, cut where they are long."""
        text = " ".join(self.studies.texts[n] for n in self.studies.sentences[study])
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rsplit(' ', 1)[0]} ..."


def sample(run: RunData, seed: int = 0) -> Sample:
    """Draw `SAMPLE` studies, or all, and one sentence of each."""
    every, rng = run.studies, np.random.default_rng(seed)
    count = min(SAMPLE, len(every))
    places = np.sort(rng.choice(len(every), count, replace=False))
    used, numbers = np.unique(
        np.concatenate([every.sentences[p] for p in places]), return_inverse=True
    )
    ends = np.cumsum([len(every.sentences[place]) for place in places])[:-1]
    sentences = np.split(numbers, ends)
    studies = TrainingStudies(
        texts=[every.texts[n] for n in used],
        rows=[every.rows[place] for place in places],
        sentences=sentences,
        occurrences=every.occurrences[used],
    )
    texts = [int(rng.choice(numbers)) for numbers in sentences]
    index = torch.tensor(texts)
    fields: dict[str, Any] = {"seed": 0, "done": 1.0}
    for name, values in BatchFields(replace(run, studies=studies)).values.items():
        match FIELDS[name].axis:
            case "text":
                fields[name] = values[index]
            case "image":
                fields[name] = values[torch.arange(count)]
            case "pair":
                fields[name] = values[index] @ values[index].T
            case "batch":
                fields[name] = values
    batch = ContrastiveBatch(torch.zeros(count, count), torch.tensor(1.0), **fields)
    return Sample(studies, texts, batch)


def pair_classes(run: RunData) -> tuple[list[PairClasses], list[str]]:
    """What the parts of the objective make of pairs, and sentences on parts not shown."""
    parts = [one for one in run.objective.modules() if isinstance(one, MultiPositive | Policy)]
    late = [one for one in parts if isinstance(one, LateStart)]
    notes = [
        f"The policy '{one.kind}' decides by what the model itself finds similar, so the pairs "
        "that it takes away change from step to step."
        for one in late
    ]
    fixed = [one for one in parts if one not in late]
    if not fixed or len(run.studies) < 2:
        return [], notes
    drawn = sample(run)
    return [_counted(*_classes(one, drawn.batch), drawn) for one in fixed], notes


def _classes(part: Any, batch: ContrastiveBatch) -> tuple[str, dict[str, tuple[Tensor, str]]]:
    """The title of a part of the objective; by class its pairs, and what the loss makes of them."""
    anchors = batch.anchors("text_to_image")[0]
    others = anchors.negatives
    if isinstance(part, MultiPositive):
        agree = "pulled near, as the sentence's own image is"
        if part.settings.weight < 1 or part.settings.schedule is not None:
            agree += " (in a part of the loss, or of the run)"
        title = f"Several positives, by the evidence '{part.settings.evidence.kind}'"
        threshold = part.settings.threshold
        effects = [agree, "left among the negatives: the evidence is too weak", *["negatives"] * 2]
    elif isinstance(part, WeighByEvidence):
        settings, threshold = part.settings, 1 - 1e-6
        title = f"Negatives weighed by the evidence '{settings.evidence.kind}'"
        names = {0.0: "no negatives: left out of the loss", 1.0: "negatives"}
        effects = [
            names.get(weight, f"negatives that count {weight:g} times")
            for weight in (settings.agree, settings.unknown, settings.contradict)
        ]
        between = f"between {settings.unknown:g} and {settings.agree:g} times a negative"
        effects.insert(1, between)
    else:
        after = part.apply_to(anchors, batch)
        kept, less = after.negatives, torch.zeros_like(others)
        if after.weights is not None:
            less = kept & (after.weights != 1)
        return f"The policy '{part.kind}'", {
            "taken away": (others & ~kept, "no negatives: left out of the loss"),
            "weight changed": (less, "negatives with another weight than 1"),
            "kept": (kept & ~less, "negatives"),
        }
    value = part.evidence(anchors, batch)
    agrees = value > threshold
    masks = [agrees, (value > 0) & ~agrees, value == 0, value < 0]
    of_evidence = ("agree", "agree, uncertain", "unknown", "contradict")
    classes = zip(of_evidence, masks, effects, strict=True)
    return title, {name: (mask & others, effect) for name, mask, effect in classes}


def _counted(title: str, classes: Mapping[str, tuple[Tensor, str]], drawn: Sample) -> PairClasses:
    counts = {name: int(mask.sum()) for name, (mask, _) in classes.items()}
    rows, examples = [], []
    for name, (mask, effect) in classes.items():
        if not counts[name]:
            continue
        share = counts[name] / sum(counts.values())
        rows.append([name, effect, number(counts[name]), f"{share:.2%}"])
        if name in ("unknown", "kept"):
            continue
        reports: dict[str, str] = {}  # the first pairs, with distinct sentences
        for anchor, image in mask.nonzero().tolist():
            reports.setdefault(drawn.studies.texts[drawn.texts[anchor]], drawn.report(image))
            if len(reports) == EXAMPLES:
                break
        examples += [[name, text, report] for text, report in reports.items()]
    return PairClasses(title, rows, examples)
