"""Which pairs of a sentence and another study's image count as positive, negative or neither.

Counted over a sample of training studies, each with one of its sentences, as a batch has them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medclip_debias.data.loader import TrainingStudies
from medclip_debias.losses.batch import FIELDS, ContrastiveBatch
from medclip_debias.losses.multi_positive import MultiPositive
from medclip_debias.losses.policies.evidence import WeighByEvidence
from medclip_debias.losses.policy import LateStart, Policy
from medclip_debias.reporting.content import Rows, number
from medclip_debias.training.fields import BatchFields, RunData

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
    shown = [one for one in parts if one not in late]
    if not shown or len(run.studies) < 2:
        return [], notes
    drawn = sample(run)
    return [_counted(*_classes(one, drawn.batch), drawn) for one in shown], notes


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
        effects = [_weight(of) for of in (settings.agree, settings.unknown, settings.contradict)]
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
    names = ("agree", "agree, uncertain", "unknown", "contradict")
    classes = zip(names, masks, effects, strict=True)
    return title, {name: (mask & others, effect) for name, mask, effect in classes}


def _weight(weight: float) -> str:
    known = {0.0: "no negatives: left out of the loss", 1.0: "negatives"}
    return known.get(weight, f"negatives that count {weight:g} times")


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
