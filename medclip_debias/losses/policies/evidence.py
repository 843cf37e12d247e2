"""Policies by what is known of the pair: leave out what agrees, or weigh by the evidence."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, LossBatch, same_study
from medclip_debias.losses.evidence import PairEvidence, known, label, text
from medclip_debias.losses.labels import CHEX5_NAMES, Match, Uncertain
from medclip_debias.losses.objective import CLAIMS, EVIDENCE, NestedEvidence, strength
from medclip_debias.losses.pairs import same_text
from medclip_debias.losses.policy import Policy, PolicySettings, register


@register(
    "remove_by_label",
    reads={"labels"},
    rowwise=True,
    formula="W = 0 where the present labels of anchor and candidate intersect",
    paper="Sample-specific debiasing (2023), table 1; Khosla et al. (2020)",
)
def remove_by_label(
    anchors: Anchors,
    batch: LossBatch,
    *,
    match: Match = "shared",
    uncertain: Uncertain = "as_negative",
    labels: tuple[str, ...] = CHEX5_NAMES,
) -> Tensor:
    """``W = 0`` where the label sets of anchor and candidate intersect (or are equal).

    ``match: shared`` drops a negative with a present label in common, ``equal`` one whose labels
    are all the same; ``uncertain`` says what -1 is.
    """
    return ~label(anchors, batch, match=match, labels=labels, uncertain=uncertain)


@register(
    "remove_by_text",
    reads={"text_similarity"},
    rowwise=True,
    formula="W = 0 where cos(text_j, text_n) > threshold",
    paper="Sample-specific debiasing (2023), table 1",
)
def remove_by_text(
    anchors: Anchors, batch: LossBatch, *, threshold: Annotated[float, Field(ge=-1, le=1)] = 0.9
) -> Tensor:
    """``W = 0`` where a candidate's most similar sentence exceeds the ``threshold``.

    The paper gives none.
    """
    return ~text(anchors, batch, threshold=threshold)


@register(
    "remove_known",
    reads={"agreement", "text_ids"},
    rowwise=True,
    formula="W = 0 where the image is known to agree with the sentence",
    paper="this project (oracle)",
)
def remove_known(anchors: Anchors, batch: LossBatch, *, path: Path | None = None) -> Tensor:
    """``W = 0`` where the image is known to agree: no removal of false negatives can know more.

    ``path`` as `medclip_debias.data.agreement` writes it.
    """
    return known(anchors, batch, path=path) < 0


@register(
    "mask_same_study",
    reads={"sample_ids"},
    rowwise=True,
    formula="W = 0 where anchor and candidate are of one study",
    paper="this project",
)
def mask_same_study(anchors: Anchors, batch: LossBatch) -> Tensor:
    """``W = 0`` where anchor and candidate have the same ``sample_ids`` (two views of a study)."""
    return ~same_study(anchors, batch)


@register(
    "mask_identical_text",
    reads={"text_ids"},
    rowwise=True,
    formula="W = 0 where anchor and candidate have the same sentence",
    paper="this project",
)
def mask_identical_text(anchors: Anchors, batch: LossBatch) -> Tensor:
    """``W = 0`` where anchor and candidate have the same sentence (equal ``text_ids``)."""
    return ~same_text(anchors, batch)


class WeighByEvidenceSettings(PolicySettings):
    """Settings of `WeighByEvidence`: weights of a negative whose evidence is 1, 0 and -1.

    The defaults remove false negatives alone. ``margin`` (on the cosine scale) is added to the
    similarity of a contradicting pair.
    """

    kind: Literal["weigh_by_evidence"] = "weigh_by_evidence"
    evidence: NestedEvidence = CLAIMS
    agree: float = Field(0.0, ge=0, le=100)
    unknown: float = Field(1.0, ge=0, le=100)
    contradict: float = Field(1.0, ge=0, le=100)
    margin: float = Field(0.0, ge=0, le=1)


@register(
    "weigh_by_evidence",
    WeighByEvidenceSettings,
    rowwise=True,
    formula="W by the evidence e: agree at 1, unknown at 0, contradict at -1",
    paper="this project; CoNNS weighs pairs by concepts",
)
class WeighByEvidence(Policy):
    """``W`` between ``unknown`` and ``agree`` (or ``contradict``) in proportion to the evidence.

    With a margin m the logit of a contradicting negative becomes ``s + g2 m |e|``.
    """

    settings: WeighByEvidenceSettings

    def __init__(self, settings: WeighByEvidenceSettings | None = None) -> None:
        super().__init__(settings)
        self.evidence: PairEvidence = EVIDENCE.build(self.settings.evidence)

    def apply_to(self, anchors: Anchors, batch: LossBatch) -> Anchors:
        """The anchors with the weights multiplied in, and the margin added."""
        after = super().apply_to(anchors, batch)
        margin = self.settings.margin * strength(self.settings.schedule, batch)
        if not margin:
            return after
        contradict = (-self.evidence(anchors, batch)).clamp(min=0)
        return replace(after, logits=after.logits + anchors.scale * margin * contradict)

    def forward(self, anchors: Anchors, batch: LossBatch) -> Tensor:
        """Weights ``[A, C]``."""
        s, evidence = self.settings, self.evidence(anchors, batch)
        agree, contradict = evidence.clamp(min=0), (-evidence).clamp(min=0)
        weights = (
            s.unknown + agree * (s.agree - s.unknown) + contradict * (s.contradict - s.unknown)
        )
        return torch.where(anchors.negatives, weights, 0.0)
