"""Several positives an anchor: what evidence finds to agree is pulled near, not pushed away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor

from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.annealing import Schedule
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.core import ContrastiveCore, CoreSettings
from medclip_debias.losses.evidence.claims import ClaimsSettings
from medclip_debias.losses.objective import (
    AroundCore,
    LossOutput,
    LossSettings,
    NestedLoss,
    build_objective,
)
from medclip_debias.losses.objectives.infonce import InfoNCESettings
from medclip_debias.losses.objectives.siglip import SigLIP
from medclip_debias.losses.objectives.supcon import with_candidates
from medclip_debias.losses.pair_evidence import Evidence, build_evidence
from medclip_debias.losses.targets import soft_cross_entropy


def _contrastive(value: LossSettings) -> LossSettings:
    if not isinstance(value, CoreSettings):
        raise ValueError(f"'{value.kind}' is no contrastive core: it has no anchors")
    return value


class MultiPositiveSettings(LossSettings):
    """Settings of `MultiPositive`.

    ``core`` is any contrastive objective, with its direction and its policies. ``evidence`` says
    which negatives agree with their anchor; those above ``threshold`` (the default leaves
    out what rests on an uncertain claim) become positives, all with
    the same weight (``weigh: uniform``) or each with its evidence (``confidence``). ``prior`` is
    the weight that a negative of unknown evidence has as a positive. ``weight`` mixes: 0 is the
    core alone, 1 (the default) the targets alone; ``schedule`` multiplies it.
    """

    kind: Literal["multi_positive"] = "multi_positive"
    core: Annotated[NestedLoss, AfterValidator(_contrastive)] = InfoNCESettings()
    evidence: Evidence = ClaimsSettings()
    threshold: float = Field(0.5, ge=0, lt=1)
    weigh: Literal["uniform", "confidence"] = "uniform"
    prior: float = Field(0.0, ge=0, lt=1)
    weight: float = Field(1.0, ge=0, le=1)
    schedule: Schedule | None = None


class MultiPositive(AroundCore[MultiPositiveSettings]):
    """``(1 - c) core + c targets``, c the weight times the schedule's strength.

    With ``q_jk`` 1 at the anchor's own positive, its weight at a negative that agrees with the
    anchor, and 0 elsewhere, the targets are, for a core of softmax::

        -sum_k (q_jk / sum_i q_ji) log softmax_k(s_jk)

    and for `SigLIP`, with its learned bias b::

        -sum_k q_jk log sigmoid(s_jk + b) - sum_n (1 - q_jn) W_n log sigmoid(-(s_jn + b))

    The core's policies act first and weigh the negatives of both parts; a positive has weight 1
    whatever they made of it. With InfoNCE and ``c = 1`` this is definition A of docs/theory.md
    (MP-NCE with evidence about the pair), with a schedule definition B; where nothing agrees it
    is the core.

    Diagnostics: those of the core's policies; ``positives`` mean of ``sum_k q_jk``; ``agreeing``,
    ``contradicting`` and ``unknown``, shares of the negatives before any policy; ``strength``, c.

    Example:
        >>> batch = ContrastiveBatch(
        ...     torch.eye(3),
        ...     torch.tensor(50.0),
        ...     stated=torch.tensor([[-100], [-100], [0]]),
        ...     claims=torch.tensor([[-1], [-1], [0]]),  # "No effusion." twice
        ... )
        >>> torch.round(MultiPositive()(batch).per_anchor)  # half of the target 50 below its peak
        tensor([25., 25.,  0.])
    """

    whole_batch = None
    formula: ClassVar[str] = (
        "(1 - c) core - c sum_k (q_jk / sum q_j) log softmax_k(s_jk), q = 1 where evidence agrees"
    )
    paper: ClassVar[str] = "this project; RadZero's MP-NCE, Khosla et al. (2020)"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"weigh": "confidence", "prior": 0.1, "core": {"kind": "clip"}},
        {
            "core": {"kind": "siglip", "initial_bias": -1.0},
            "weigh": "confidence",
            "evidence": {"kind": "known", "control": "permuted"},
        },
        {
            "core": {
                "kind": "debiased",
                "direction": "symmetric",
                "negatives": [{"kind": "weigh_by_evidence", "contradict": 2.0}],
            },
            "weight": 0.7,
            "schedule": {"start": 0.1, "end": 0.9, "shape": "linear"},
            "evidence": {"kind": "text", "threshold": 0.3},
        },
    )

    def __init__(self, settings: MultiPositiveSettings | None = None) -> None:
        super().__init__(settings)
        core = build_objective(self.settings.core)
        assert isinstance(core, ContrastiveCore)  # the settings say so
        self.core: ContrastiveCore[Any] = core
        self.evidence = build_evidence(self.settings.evidence)
        self.positive_alone = core.positive_alone

    @property
    def requires(self) -> frozenset[str]:
        """What the core and the evidence read, and ``done`` with a schedule."""
        own = {"done"} if self.settings.schedule is not None else set()
        return self.core.requires | self.evidence.requires | own

    def forward(self, batch: ContrastiveBatch) -> LossOutput:
        """Losses of the batch's anchors ``[T]`` (``symmetric``: the mean of the two)."""
        strength = self._strength(batch)
        before = self.core.candidates(batch)
        sets, diagnostics = self.core.anchors(batch)
        evidence = [self.evidence(anchors, batch) for anchors in before]
        weights = [
            self._weights(value, anchors) for value, anchors in zip(evidence, before, strict=True)
        ]
        losses = [self._targets(anchors, q) for anchors, q in zip(sets, weights, strict=True)]
        loss = torch.stack(losses).mean(dim=0)
        if strength < 1:
            core = self.core.over(sets, diagnostics, batch)
            diagnostics = core.diagnostics
            loss = (1 - strength) * core.per_anchor + strength * loss
        return LossOutput(loss, diagnostics | _shares(batch, evidence, before, weights, strength))

    def _strength(self, batch: ContrastiveBatch) -> float:
        s = self.settings
        if s.schedule is None:
            return s.weight
        return s.weight * s.schedule.strength(batch.needed("done", f"{self.kind}: schedule"))

    def _weights(self, evidence: Tensor, anchors: Anchors) -> Tensor:
        """``[A, C]`` ``q`` of the negatives, 0 elsewhere (also at the own positive)."""
        s = self.settings
        agrees = evidence > s.threshold
        value = evidence if s.weigh == "confidence" else torch.ones_like(evidence)
        q = torch.where(agrees, value, 0.0)
        if s.prior:
            q = torch.where(evidence == 0, s.prior, q)
        return q * anchors.negatives

    def _targets(self, anchors: Anchors, q: Tensor) -> Tensor:
        if isinstance(self.core, SigLIP):
            return self._pairwise(anchors, q, self.core.bias.to(anchors.logits.dtype))
        whole = q + anchors.is_own
        target = whole / whole.sum(dim=1, keepdim=True)
        return soft_cross_entropy(with_candidates(anchors, q > 0), target)

    def _pairwise(self, anchors: Anchors, q: Tensor, bias: Tensor) -> Tensor:
        logits, zero = anchors.logits + bias, torch.zeros_like(anchors.logits)
        weights = anchors.negatives if anchors.weights is None else anchors.weights
        yes, no = q + anchors.is_own, (1 - q) * weights
        pairs = yes * torch.logaddexp(-logits, zero) + no * torch.logaddexp(logits, zero)
        return pairs.sum(dim=1)


def _shares(
    batch: ContrastiveBatch,
    evidence: list[Tensor],
    anchors: list[Anchors],
    weights: list[Tensor],
    strength: float,
) -> dict[str, Tensor]:
    """Diagnostics of the evidence over all negatives."""
    with torch.no_grad():
        found = torch.cat([e[a.negatives] for e, a in zip(evidence, anchors, strict=True)])
        kinds = {"agreeing": found > 0, "contradicting": found < 0, "unknown": found == 0}
        dtype = weights[0].dtype
        shares = {name: batch.mean(what.to(dtype)) for name, what in kinds.items()}
        positives = batch.mean(torch.stack([1 + q.sum(dim=1) for q in weights]))
        return shares | {"positives": positives, "strength": positives.new_tensor(strength)}
