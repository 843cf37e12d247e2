"""Several positives an anchor: what evidence finds to agree is pulled near, not pushed away.

With ``q_jk`` 1 at the anchor's own positive, its weight at a negative that agrees with the anchor
and 0 elsewhere, c the weight times the schedule's strength::

    loss = (1 - c) core - c sum_k (q_jk / sum_i q_ji) log softmax_k(s_jk)

and for a core of `SigLIP`, with its learned bias b, the targets are::

    -sum_k q_jk log sigmoid(s_jk + b) - sum_n (1 - q_jn) W_n log sigmoid(-(s_jn + b))

With InfoNCE and ``c = 1`` this is definition A of docs/theory.md (MP-NCE with evidence about the
pair), with a schedule definition B; where nothing agrees it is the core.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from medclip_debias.config import Schedule
from medclip_debias.losses.anchors import Anchors, LossBatch
from medclip_debias.losses.objective import (
    CLAIMS,
    EVIDENCE,
    OBJECTIVES,
    ContrastiveLoss,
    ContrastiveSettings,
    LossOutput,
    LossSettings,
    NestedEvidence,
    NestedLoss,
    Objective,
    Reader,
    register,
    strength,
)
from medclip_debias.losses.pairs import soft_cross_entropy, with_candidates


def softmax_targets(anchors: Anchors, q: Tensor) -> Tensor:
    """Loss ``[A]`` to the targets ``q`` ``[A, C]``; a positive weighs 1 whatever policies say."""
    positives = q + anchors.is_positive
    target = positives / positives.sum(dim=1, keepdim=True)
    return soft_cross_entropy(with_candidates(anchors, q > 0), target)


def _contrastive(value: LossSettings) -> LossSettings:
    if not isinstance(value, ContrastiveSettings):
        raise ValueError(f"'{value.kind}' is not a contrastive core: it has no anchors")
    return value


class MultiPositiveSettings(LossSettings):
    """Settings of `MultiPositive`.

    ``core`` is any contrastive objective, with its direction and its policies. ``evidence`` says
    which negatives agree with their anchor; those above ``threshold`` (the default leaves out
    what rests on an uncertain claim) become positives, all with the same weight
    (``weigh: uniform``) or each with its evidence (``confidence``). ``prior`` is the weight that a
    negative of unknown evidence has as a positive. ``weight`` mixes: 0 is the core alone, 1 (the
    default) the targets alone; ``schedule`` multiplies it.
    """

    kind: Literal["multi_positive"] = "multi_positive"
    core: Annotated[NestedLoss, AfterValidator(_contrastive)] = Field(
        default_factory=lambda: OBJECTIVES.settings({"kind": "infonce"}, "core")
    )
    evidence: NestedEvidence = CLAIMS
    threshold: float = Field(0.5, ge=0, lt=1)
    weigh: Literal["uniform", "confidence"] = "uniform"
    prior: float = Field(0.0, ge=0, lt=1)
    weight: float = Field(1.0, ge=0, le=1)
    schedule: Schedule | None = None


@register(
    "multi_positive",
    MultiPositiveSettings,
    rowwise=True,
    formula="(1 - c) core - c sum_k (q_jk / sum q_j) log softmax_k(s_jk), q = 1 where evidence "
    "agrees",
    paper="this project; RadZero's MP-NCE, Khosla et al. (2020)",
)
class MultiPositive(Objective):
    """``(1 - c) core + c targets``; the core's policies weigh the negatives of both parts.

    Diagnostics: those of the core's policies; ``positives`` mean of ``sum_k q_jk``; ``agreeing``,
    ``contradicting`` and ``unknown``, shares of the negatives before any policy; ``strength``, c.

    Example:
        >>> from medclip_debias.losses import ContrastiveBatch
        >>> batch = ContrastiveBatch(
        ...     torch.eye(3),
        ...     torch.tensor(50.0),
        ...     stated=torch.tensor([[-100], [-100], [0]]),
        ...     claims=torch.tensor([[-1], [-1], [0]]),  # "No effusion." twice
        ... )
        >>> torch.round(MultiPositive()(batch).per_anchor)  # half of the target 50 below its peak
        tensor([25., 25.,  0.])
    """

    settings: MultiPositiveSettings

    def __init__(self, settings: MultiPositiveSettings | None = None) -> None:
        super().__init__(settings)
        self.core: ContrastiveLoss = OBJECTIVES.build(self.settings.core)  # the settings say so
        self.evidence: Reader = EVIDENCE.build(self.settings.evidence)

    def forward(self, batch: LossBatch) -> LossOutput:
        """Losses of the batch's anchors ``[T]`` (``symmetric``: the mean of the two)."""
        c = self.settings.weight * strength(self.settings.schedule, batch)
        before = self.core.candidates(batch)
        sets, diagnostics = self.core.anchors(batch)
        evidence = [self.evidence(anchors, batch) for anchors in before]
        targets = [self._targets(e, a) for e, a in zip(evidence, before, strict=True)]
        of_targets = getattr(self.core, "targets", softmax_targets)
        losses = [of_targets(anchors, q) for anchors, q in zip(sets, targets, strict=True)]
        loss = torch.stack(losses).mean(dim=0)
        if c < 1:
            core = self.core.over(sets, batch)
            diagnostics |= core.diagnostics
            loss = (1 - c) * core.per_anchor + c * loss
        with torch.no_grad():
            values = torch.cat([e.flatten() for e in evidence])
            negatives = torch.cat([anchors.negatives.flatten() for anchors in before])
            kinds = {"agreeing": values > 0, "contradicting": values < 0, "unknown": values == 0}
            diagnostics |= {name: batch.mean(what, negatives) for name, what in kinds.items()}
            positives = batch.mean(torch.stack([1 + q.sum(dim=1) for q in targets]))
            diagnostics |= {"positives": positives, "strength": positives.new_full((), c)}
        return LossOutput(loss, diagnostics)

    def _targets(self, evidence: Tensor, anchors: Anchors) -> Tensor:
        """``[A, C]`` ``q`` of the negatives, 0 elsewhere (also at the own positive)."""
        s = self.settings
        value = evidence if s.weigh == "confidence" else torch.ones_like(evidence)
        q = torch.where(evidence > s.threshold, value, 0.0)
        if s.prior:
            q = torch.where(evidence == 0, s.prior, q)
        return q * anchors.negatives
