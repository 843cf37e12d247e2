"""Policy: weigh negatives by what is known of the pair; removal and hard negatives in one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.evidence.claims import ClaimsSettings
from medclip_debias.losses.pair_evidence import Evidence, build_evidence
from medclip_debias.losses.policy import NegativePolicy, PolicySettings


class WeighByEvidenceSettings(PolicySettings):
    """Settings of `WeighByEvidence`.

    ``agree``, ``unknown`` and ``contradict`` are the weights of a negative whose evidence is 1, 0
    and -1; the defaults remove false negatives and leave the others as they are. ``margin`` (on the
    cosine scale) is added to the similarity of a contradicting pair.
    """

    kind: Literal["weigh_by_evidence"] = "weigh_by_evidence"
    evidence: Evidence = ClaimsSettings()
    agree: float = Field(0.0, ge=0, le=100)
    unknown: float = Field(1.0, ge=0, le=100)
    contradict: float = Field(1.0, ge=0, le=100)
    margin: float = Field(0.0, ge=0, le=1)


class WeighByEvidence(NegativePolicy[WeighByEvidenceSettings]):
    """``W`` between ``unknown`` and ``agree`` (or ``contradict``) in proportion to the evidence.

    With a margin m the logit of a contradicting negative becomes ``s + g2 m |e|``.

    Example:
        >>> batch = ContrastiveBatch(
        ...     torch.zeros(3, 3),
        ...     torch.tensor(1.0),
        ...     stated=torch.tensor([[-100, 0], [-100, 100], [100, 0]]),
        ...     claims=torch.tensor([[-1], [2], [1]]),
        ... )
        >>> policy = WeighByEvidence(WeighByEvidenceSettings(contradict=3))
        >>> policy.apply_to(batch.anchors("text_to_image")[0], batch).weights
        tensor([[0., 0., 3.],
                [1., 0., 1.],
                [3., 3., 0.]])
    """

    whole_batch = None
    formula: ClassVar[str] = "W by the evidence e: agree at 1, unknown at 0, contradict at -1"
    paper: ClassVar[str] = "this project; CoNNS weighs pairs by concepts"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"contradict": 2.0, "unknown": 0.5, "margin": 0.1, "keep_mass": True},
        {
            "evidence": {"kind": "known", "control": "random"},
            "schedule": {"end": 0.6, "shape": "cosine"},
        },
    )

    def __init__(self, settings: WeighByEvidenceSettings | None = None) -> None:
        super().__init__(settings)
        self.evidence = build_evidence(self.settings.evidence)

    @property
    def requires(self) -> frozenset[str]:
        """What the evidence reads."""
        return self.evidence.requires

    def apply_to(self, anchors: Anchors, batch: ContrastiveBatch) -> Anchors:
        """The anchors with the weights multiplied in, and the margin added."""
        after = super().apply_to(anchors, batch)
        s = self.settings
        margin = s.margin
        if margin and s.schedule is not None:
            margin *= s.schedule.strength(batch.needed("done", f"{self.kind}: schedule"))
        if not margin:
            return after
        contradict = (-self.evidence(anchors, batch)).clamp(min=0)
        return replace(after, logits=after.logits + anchors.scale * margin * contradict)

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]``."""
        s, evidence = self.settings, self.evidence(anchors, batch)
        agree, contradict = evidence.clamp(min=0), (-evidence).clamp(min=0)
        weights = (
            s.unknown + agree * (s.agree - s.unknown) + contradict * (s.contradict - s.unknown)
        )
        result: Tensor = torch.where(anchors.negatives, weights, 0.0)
        return result
