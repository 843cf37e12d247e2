"""Whether an image shows what a sentence says, or no box should be given for it.

A map has a brightest place whether or not its finding is there, so boxes alone are an answer to
the wrong question. Two things speak against a box: the sentence's own words (it only denies, or
says that something is normal), and the image, by one of four kinds of evidence, each higher where
the sentence is likelier true:

- ``offset``: the image's score less the sentence's level over unlabelled images, the constant
  ``o_t = (1/g2) log mean_x exp(g2 s(x, t))`` (docs/theory.md, statement 6). A sentence of which
  every image scores high has to score higher to be believed. For sentences that nobody has seen
  the level is a linear function of the sentence's vector, fitted when the rule is chosen (of a
  model that has several of a sentence, the one that lies with whole images).
- ``negated``: the score less that of the sentence that denies the same findings.
- ``peak``: the highest region less the reference of absent findings
  (`medclip_debias.grounding.absent`).
- ``score``: the score itself.

Which kind, and from what value on, is chosen on validation images
(`medclip_debias.evaluation.sentence_choice`) and kept in the model's folder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.config import validate
from medclip_debias.errors import UserError
from medclip_debias.files import read_json, write_json
from medclip_debias.grounding.absent import AbsentFindings
from medclip_debias.grounding.counterparts import Reader
from medclip_debias.grounding.settings import EvidenceKind, SuppressionRule
from medclip_debias.models.finite import finite
from medclip_debias.models.sentences import one_vector

if TYPE_CHECKING:
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

Floats = NDArray[np.float64]
FILE = "suppression.json"


@dataclass(frozen=True)
class Verdict:
    """What is held of one sentence and one image."""

    there: bool  # whether boxes are given
    why: Literal["", "words", "image"]  # not: the sentence itself denies, or the image is against
    evidence: float | None  # of the rule's kind; None for the words alone
    probability: float  # that the image shows it, in [0, 1]; 0 where the words deny


class Evidence:
    """The evidence of some kinds for sentences on images."""

    def __init__(self, model: ImageTextModel, kinds: Sequence[EvidenceKind]) -> None:
        self._model, self._kinds = model, tuple(kinds)
        self._absent = AbsentFindings(model) if "peak" in kinds else None

    def of(
        self, features: ImageFeatures, vectors: Tensor, denials: Tensor | None
    ) -> dict[EvidenceKind, Floats]:
        """Each kind ``[B, T]``; ``offset`` is the plain score, before its level is taken."""
        with torch.inference_mode():
            scores = finite(self._model.score(features, vectors), "grounding").astype(np.float64)
            evidence: dict[EvidenceKind, Floats] = {"offset": scores, "score": scores}
            if "negated" in self._kinds and denials is not None:
                against = finite(self._model.score(features, denials), "grounding")
                evidence["negated"] = scores - against
            if self._absent is not None:
                maps = finite(self._model.region_scores(features, vectors), "grounding")
                reference = np.array([one.reference for one in self._absent.of(features)])
                evidence["peak"] = maps.max(axis=2).astype(np.float64) - reference[:, None]
        return {kind: evidence[kind] for kind in self._kinds}


class Suppressor:
    """Applies a rule to sentences: which of them get no box, and how sure the others are."""

    def __init__(
        self, rule: SuppressionRule, model: ImageTextModel, sentences: Sequence[str]
    ) -> None:
        reads, kind = Reader(), rule.evidence
        self.rule = rule
        self._denies = [reads.denies(text) for text in sentences]
        self._evidence = Evidence(model, [kind]) if kind else None
        self._denials: Tensor | None = None
        self._levels = np.zeros(len(sentences))
        with torch.inference_mode():
            self._vectors = model.encode_sentences(list(sentences))
            if kind == "negated":
                self._denials = model.encode_sentences([reads.negated(text) for text in sentences])
        if kind == "offset":
            vectors = one_vector(self._vectors, model.outputs.sentence_rows)
            self._levels = rule.levels(vectors.cpu().numpy())

    def of(self, features: ImageFeatures) -> list[list[Verdict]]:
        """The verdict on each of T sentences for each of B images."""
        values = np.zeros((len(features), len(self._denies)))
        if self._evidence is not None:
            (values,) = self._evidence.of(features, self._vectors, self._denials).values()
        return [
            [judge(self.rule, *pair) for pair in zip(of_image, self._denies, strict=True)]
            for of_image in (values - self._levels).tolist()
        ]


def judge(rule: SuppressionRule, evidence: float, denies: bool) -> Verdict:
    """The verdict on one sentence by its evidence and its words."""
    known = None if rule.evidence is None else evidence
    if denies:
        return Verdict(False, "words", known, 0.0)
    against = known is not None and known < rule.threshold
    return Verdict(not against, "image" if against else "", known, rule.probability(evidence))


def save_rule(folder: Path, rule: SuppressionRule) -> None:
    """Keep a rule in a model's folder."""
    write_json(Path(folder) / FILE, rule.model_dump(mode="json"))


def read_rule(folder: Path, model: ImageTextModel) -> SuppressionRule:
    """The rule that a model's folder keeps."""
    path = Path(folder) / FILE
    remedy = f"run `medclip-debias evaluate suppression {folder} PREPARED`"
    if not path.is_file():
        raise UserError(
            f"{path}: is missing, so it is not known below what evidence a sentence is not in an"
            f" image; {remedy} first."
        )
    content = read_json(path, remedy)
    rule = validate(SuppressionRule, content, str(path))
    if rule.model_hash != model.content_hash:
        raise UserError(f"{path}: was made with other weights than this model's; {remedy} again.")
    if rule.evidence == "offset" and len(rule.level) != model.dim:
        raise UserError(
            f"{path}: 'level' has {len(rule.level)} numbers where the model's vectors have"
            f" {model.dim}; {remedy} again."
        )
    return rule
