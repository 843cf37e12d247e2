"""The contrastive core: anchors, and the policies that weight their negatives."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from pydantic import Field
from torch import Tensor, nn

from medclip_debias.losses.anchors import Anchors, Direction
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.objective import LossOutput, LossSettings, Objective
from medclip_debias.losses.policy import NegativePolicy, Negatives, policies


class CoreSettings(LossSettings):
    """What the settings of every contrastive core share."""

    direction: Direction = "text_to_image"
    negatives: Negatives = Field(())


C = TypeVar("C", bound=CoreSettings)


class ContrastiveCore(Objective[C]):
    """Base of the objectives that have anchors, positives and weighted negatives."""

    def __init__(self, settings: C | None = None) -> None:
        super().__init__(settings)
        known = policies() if self.settings.negatives else {}
        self.policies = nn.ModuleList(known[s.kind](s) for s in self.settings.negatives)

    @property
    def _policies(self) -> list[NegativePolicy[Any]]:
        return [policy for policy in self.policies if isinstance(policy, NegativePolicy)]

    @property
    def requires(self) -> frozenset[str]:
        """What the policies read, and ``done`` where one has a schedule."""
        scheduled = any(policy.settings.schedule is not None for policy in self._policies)
        own = frozenset({"done"}) if scheduled else frozenset()
        return own.union(*(policy.requires for policy in self._policies))

    def forward(self, batch: ContrastiveBatch) -> LossOutput:
        """Losses of the batch's anchors ``[T]`` (for ``symmetric``: the mean of the two)."""
        sets, diagnostics = self.anchors(batch)
        return self.over(sets, diagnostics, batch)

    def over(
        self, sets: list[Anchors], diagnostics: dict[str, Tensor], batch: ContrastiveBatch
    ) -> LossOutput:
        """Losses of the anchors that the policies left: what a core is.

        Args:
            sets: one set of anchors, or two for ``symmetric``.
            diagnostics: of `anchors`, to be passed on.
            batch: that the anchors are of.
        """
        raise NotImplementedError

    def candidates(self, batch: ContrastiveBatch) -> list[Anchors]:
        """The batch's anchors in the settings' direction, before any policy."""
        return batch.anchors(self.settings.direction)

    def anchors(self, batch: ContrastiveBatch) -> tuple[list[Anchors], dict[str, Tensor]]:
        """The batch's anchors in the settings' direction after every policy, and diagnostics.

        ``positive_similarity`` and ``negative_similarity`` are on the cosine scale and taken
        before any policy; ``removed``, the share of negatives that the policies took away, is
        there only when there are policies, beside what these report themselves.
        """
        before = after = self.candidates(batch)
        diagnostics: dict[str, Tensor] = {}
        for policy in self._policies:
            after = [policy.apply_to(anchors, batch) for anchors in after]
            diagnostics |= policy.figures()
        with torch.no_grad():
            first = before[0]
            diagnostics["positive_similarity"] = batch.mean(first.positive) / batch.scale
            negative = batch.mean(first.logits[first.negatives])
            diagnostics["negative_similarity"] = negative / batch.scale
            if self._policies:
                total = batch.total(torch.stack([a.negatives.sum() for a in before]).sum())
                kept = batch.total(torch.stack([a.negatives.sum() for a in after]).sum())
                diagnostics["removed"] = 1 - kept / total.clamp(min=1)
        return after, diagnostics


def mean_or_zero(values: Tensor) -> Tensor:
    """Mean of ``values``, 0 where there are none: a diagnostic must be a number."""
    return values.mean() if values.numel() else values.new_zeros(())
