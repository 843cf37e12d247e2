"""What every objective is and returns, and the base of those that have anchors and negatives."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, Field, SerializeAsAny
from torch import Tensor, nn

from medclip_debias.config import Schedule, Settings
from medclip_debias.losses.anchors import Anchors, Direction, LossBatch
from medclip_debias.registry import Chosen, Registry

Losses = tuple[Tensor, dict[str, Tensor]]
"""Loss of each anchor ``[A]``, and diagnostics by name: one number, or one for each anchor."""


@dataclass(frozen=True)
class LossOutput:
    """Per-anchor losses ``[A]`` and named scalar diagnostics; ``loss`` is their mean.

    An anchor without any negative is an explicit zero and counts in the mean.
    """

    per_anchor: Tensor
    diagnostics: dict[str, Tensor] = field(default_factory=dict)

    @property
    def loss(self) -> Tensor:
        """Mean over the anchors: a scalar."""
        return self.per_anchor.mean()


class ChosenSettings(Settings):
    """Settings of what their ``kind`` names."""

    kind: str = ""


class LossSettings(ChosenSettings):
    """Base of every objective's settings."""


def strength(schedule: Schedule | None, batch: LossBatch) -> float:
    """Strength at the batch's ``done``; 1 without a schedule."""
    return 1.0 if schedule is None else schedule.strength(batch["done"])


class Reader(Chosen, nn.Module):
    """A part of an objective that reads the batch: itself, a policy, or a kind of evidence.

    Class attributes, beside those of `Chosen`:
        reads: optional fields of the batch that it reads, whatever its settings.
        rowwise: what it gives for an anchor depends on the anchor's own row alone and is indexed
            by `Anchors.rows`, so that processes can share it (`medclip_debias.losses.distributed`).
    """

    reads: ClassVar[Collection[str]] = ()
    rowwise: bool = False

    def chosen_fields(self) -> set[str]:
        """Optional fields of the batch that its settings ask for besides."""
        return set()

    @property
    def requires(self) -> frozenset[str]:
        """Optional fields of the batch that it and its parts, so set, read."""
        parts = [module for module in self.modules() if isinstance(module, Reader)]
        scheduled = (getattr(part.settings, "schedule", None) is not None for part in parts)
        fields = {"done"} if any(scheduled) else set()
        return frozenset(fields.union(*([*part.reads, *part.chosen_fields()] for part in parts)))


class Objective(Reader):
    """Base of every objective; one that changes another objective has it as its ``core``.

    Under autocast everything in here stays float32 or better.
    """

    def __call__(self, batch: LossBatch) -> LossOutput:
        """Per-anchor losses of one batch."""
        with torch.autocast(batch.similarity.device.type, enabled=False):
            return super().__call__(batch)

    @property
    def masked_lm(self) -> Any:
        """The masked-language-model term that the training loop is to add (BioViL), or None."""
        core: Objective | None = getattr(self, "core", None)
        return getattr(self.settings, "masked_lm", None) if core is None else core.masked_lm

    @property
    def lr_factor(self) -> float:
        """What the run's learning rate is multiplied by for the parameters learned in here."""
        core: Objective | None = getattr(self, "core", None)
        return 1.0 if core is None else core.lr_factor

    def begin(self, *, samples: int, steps_per_epoch: int) -> None:
        """Tell policies and tables the run's size before its first batch.

        ``samples`` is the number of training studies, which ``sample_ids`` are below. Without this
        call tables grow as samples are seen, and nothing that counts in epochs can be used.
        """
        for module in self.modules():
            begin: Any = getattr(module, "begin", None)
            if begin is not None and not isinstance(module, Objective):
                begin(samples=samples, steps_per_epoch=steps_per_epoch)


OBJECTIVES: Registry[type[Objective]] = Registry("objective", __package__)
POLICIES: Registry[Any] = Registry("policy", f"{__package__}.policies", known="known policies")
"""Of `medclip_debias.losses.policy.Policy`."""
EVIDENCE: Registry[Any] = Registry(
    "evidence", f"{__package__}.evidence", known="known kinds of evidence"
)
"""Of `medclip_debias.losses.evidence.PairEvidence`."""
register = OBJECTIVES.register
objectives = OBJECTIVES.all
NestedLoss = Annotated[SerializeAsAny[LossSettings], BeforeValidator(OBJECTIVES.choice)]
"""Field type of an objective inside another one, validated by the kind it names."""
NestedEvidence = Annotated[SerializeAsAny[ChosenSettings], BeforeValidator(EVIDENCE.choice)]
"""Field type of a choice of evidence."""
CLAIMS: Any = Field(default_factory=lambda: EVIDENCE.settings({"kind": "claims"}, "evidence"))
"""Its usual default."""


def loss_settings(content: Mapping[str, Any], where: str, prefix: str = "loss.") -> LossSettings:
    """Validate the ``loss`` part of a run's settings: see `Registry.settings`."""
    return OBJECTIVES.settings(content, where, prefix)


def build_objective(settings: LossSettings) -> Objective:
    """Build the objective of validated ``settings``."""
    return OBJECTIVES.build(settings)


class ContrastiveSettings(LossSettings):
    """What the settings of every contrastive loss share; ``negatives`` are policies, in order."""

    direction: Direction = "text_to_image"
    negatives: Annotated[
        tuple[SerializeAsAny[ChosenSettings], ...], BeforeValidator(POLICIES.choices)
    ] = ()


class ContrastiveLoss(Objective):
    """Base of the objectives that have anchors, positives and weighted negatives."""

    policies: Any

    def __init__(self, settings: ContrastiveSettings | None = None) -> None:
        super().__init__(settings)
        self.policies = nn.ModuleList(POLICIES.build(s) for s in self.settings.negatives)

    def per_anchor(self, anchors: Anchors, batch: LossBatch) -> Losses:
        """Losses and diagnostics of one direction's ``anchors``, as the policies left them."""
        raise NotImplementedError

    def forward(self, batch: LossBatch) -> LossOutput:
        """Losses of the batch's anchors ``[T]`` (for ``symmetric``: the mean of the two)."""
        sets, diagnostics = self.anchors(batch)
        output = self.over(sets, batch)
        return LossOutput(output.per_anchor, diagnostics | output.diagnostics)

    def over(self, sets: list[Anchors], batch: LossBatch) -> LossOutput:
        """Mean of `per_anchor` over the directions."""
        losses, figures = zip(*(self.per_anchor(anchors, batch) for anchors in sets), strict=True)
        means = {
            name: batch.mean(torch.stack([each[name] for each in figures])) for name in figures[0]
        }
        return LossOutput(torch.stack(losses).mean(dim=0), means)

    def candidates(self, batch: LossBatch) -> list[Anchors]:
        """The batch's anchors in the settings' direction, before any policy."""
        return batch.anchors(self.settings.direction)

    def anchors(self, batch: LossBatch) -> tuple[list[Anchors], dict[str, Tensor]]:
        """The anchors after every policy, and diagnostics.

        Similarities are on the cosine scale and before any policy; ``removed`` is the share of
        negatives that the policies took away.
        """
        before = after = self.candidates(batch)
        diagnostics: dict[str, Tensor] = {}
        for policy in self.policies:
            after = [policy.apply_to(anchors, batch) for anchors in after]
            diagnostics |= policy.figures()
        with torch.no_grad():
            first = before[0]
            negative = batch.mean(first.logits, first.negatives)
            diagnostics["positive_similarity"] = batch.mean(first.positive) / batch.scale
            diagnostics["negative_similarity"] = negative / batch.scale
            if len(self.policies):
                total, kept = (
                    batch.total(torch.stack([anchors.negatives.sum() for anchors in sets]).sum())
                    for sets in (before, after)
                )
                diagnostics["removed"] = 1 - kept / total.clamp(min=1)
        return after, diagnostics
