"""Which pairs of a sentence and another study's image count as positive, negative or neither.

Counted over a sample of training studies, each with one of its sentences, as a batch has them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from medclip_debias.data.loader import TrainingStudies
from medclip_debias.losses.batch import FIELDS, Anchors, ContrastiveBatch
from medclip_debias.losses.evidence import PairEvidence
from medclip_debias.losses.multi_positive import MultiPositive
from medclip_debias.losses.policies.evidence import WeighByEvidence
from medclip_debias.losses.policy import LateStart, Policy
from medclip_debias.reporting.content import Rows, number
from medclip_debias.reporting.learned_from import Learned
from medclip_debias.training.fields import BatchFields

SAMPLE = 256
"""Studies, and so sentences: 65,280 pairs."""
EXAMPLES = 3
_LONGEST = 240


@dataclass(frozen=True)
class Judged:
    """What one part of an objective makes of the pairs of the sample.

    Attributes:
        title: the part, in words.
        rows: class of pair, what the loss makes of it, how many, and their share.
        examples: class, sentence, and the report of the other study.
    """

    title: str
    rows: Rows
    examples: Rows


@dataclass(frozen=True)
class Sample:
    """Studies drawn at random, a sentence of each, and all that the objective asks about them."""

    studies: TrainingStudies
    texts: list[int]
    batch: ContrastiveBatch

    @property
    def anchors(self) -> Anchors:
        """Each sentence against the images."""
        return self.batch.anchors("text_to_image")[0]

    def report(self, study: int) -> str:
        """All sentences of a study, cut where they are long."""
        text = " ".join(self.studies.texts[n] for n in self.studies.sentences[study])
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rsplit(' ', 1)[0]} ..."


def sample(learned: Learned, seed: int = 0) -> Sample:
    """Draw `SAMPLE` studies, or all, and one sentence of each.

    Raises:
        UserError: the set lacks something that the objective reads.
    """
    whole, rng = learned.run.studies, np.random.default_rng(seed)
    count = min(SAMPLE, len(whole))
    places = np.sort(rng.choice(len(whole), count, replace=False))
    used = sorted({int(n) for place in places for n in whole.sentences[place]})
    position = {n: new for new, n in enumerate(used)}
    said = [np.array([position[int(n)] for n in whole.sentences[place]]) for place in places]
    studies = TrainingStudies(
        texts=[whole.texts[n] for n in used],
        rows=[whole.rows[place] for place in places],
        sentences=said,
        occurrences=whole.occurrences[used],
    )
    texts = [int(rng.choice(own)) for own in said]
    fields = BatchFields(replace(learned.run, studies=studies))
    index = torch.tensor(texts)
    given: dict[str, Any] = {"seed": 0, "done": 1.0}
    for name, values in fields.values.items():
        match FIELDS[name].axis:
            case "text":
                given[name] = values[index]
            case "image":
                given[name] = values[torch.arange(count)]
            case "pair":
                given[name] = values[index] @ values[index].T
            case "batch":
                given[name] = values
    batch = ContrastiveBatch(torch.zeros(count, count), torch.tensor(1.0), **given)
    return Sample(studies, texts, batch)


def judged(learned: Learned) -> tuple[list[Judged], list[str]]:
    """What the parts of the objective make of pairs, and sentences on parts that cannot be shown.

    Raises:
        UserError: the set lacks something that the objective reads.
    """
    parts: list[Any] = list(_parts(learned))
    late: list[Any] = [part for part in parts if isinstance(part, LateStart)]
    shown = [part for part in parts if part not in late]
    notes = [
        f"The policy '{part.kind}' decides by what the model itself finds similar, so the pairs "
        "that it takes away change from step to step."
        for part in late
    ]
    if not shown or len(learned.run.studies) < 2:
        return [], notes
    drawn = sample(learned)
    return [_of_part(part, drawn) for part in shown], notes


def _parts(learned: Learned) -> Iterator[Any]:
    """Multiple positives, then policies, in the order of the objective."""
    for module in learned.objective.modules():
        if isinstance(module, MultiPositive | Policy):
            yield module


def _of_part(part: Any, drawn: Sample) -> Judged:
    if isinstance(part, MultiPositive):
        several = part.settings
        title = f"Several positives, by the evidence '{several.evidence.kind}'"
        agree = "pulled near, as the sentence's own image is"
        if several.weight < 1 or several.schedule is not None:
            agree += " (in a part of the loss, or of the run)"
        weak = "left among the negatives: the evidence is too weak"
        effects = (agree, weak, "negatives", "negatives")
        return _by_evidence(part.evidence, drawn, title, several.threshold, effects)
    if isinstance(part, WeighByEvidence):
        s = part.settings
        title = f"Negatives weighed by the evidence '{s.evidence.kind}'"
        between = f"between {s.unknown:g} and {s.agree:g} times a negative"
        effects = (_weight(s.agree), between, _weight(s.unknown), _weight(s.contradict))
        return _by_evidence(part.evidence, drawn, title, 1 - 1e-6, effects)
    return _by_policy(part, drawn)


def _weight(weight: float) -> str:
    known = {0.0: "no negatives: left out of the loss", 1.0: "negatives"}
    return known.get(weight, f"negatives that count {weight:g} times")


def _by_evidence(
    evidence: PairEvidence,
    drawn: Sample,
    title: str,
    threshold: float,
    effects: tuple[str, str, str, str],
) -> Judged:
    anchors = drawn.anchors
    value, others = evidence(anchors, drawn.batch), anchors.negatives
    classes = {
        "agree": value > threshold,
        "agree, uncertain": (value > 0) & (value <= threshold),
        "unknown": value == 0,
        "contradict": value < 0,
    }
    return _counted(
        title,
        {n: (m & others, e) for (n, m), e in zip(classes.items(), effects, strict=True)},
        drawn,
    )


def _by_policy(part: Policy, drawn: Sample) -> Judged:
    before = drawn.anchors
    after = part.apply_to(before, drawn.batch)
    kept, others = after.negatives, before.negatives
    less = torch.zeros_like(kept)
    if after.weights is not None:
        less = kept & (after.weights != 1)
    classes = {
        "taken away": (others & ~kept, "no negatives: left out of the loss"),
        "weight changed": (less, "negatives with another weight than 1"),
        "kept": (kept & ~less, "negatives"),
    }
    return _counted(f"The policy '{part.kind}'", classes, drawn)


def _counted(title: str, classes: dict[str, tuple[Tensor, str]], drawn: Sample) -> Judged:
    total = sum(int(mask.sum()) for mask, _ in classes.values())
    rows, examples = [], []
    for name, (mask, effect) in classes.items():
        count = int(mask.sum())
        if not count:
            continue
        rows.append([name, effect, number(count), f"{count / total:.2%}"])
        if name not in ("unknown", "kept"):
            examples += [[name, *words] for words in _examples(mask, drawn)]
    return Judged(title, rows, examples)


def _examples(mask: Tensor, drawn: Sample) -> list[list[str]]:
    """The first pairs of a class, with distinct sentences."""
    shown: dict[str, str] = {}
    for anchor, image in mask.nonzero().tolist():
        text = drawn.studies.texts[drawn.texts[anchor]]
        shown.setdefault(text, drawn.report(image))
        if len(shown) == EXAMPLES:
            break
    return [[text, report] for text, report in shown.items()]
