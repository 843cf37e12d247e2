"""Policy: drop the negatives that the model itself finds most similar (top-k, no state)."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import SIDES, Anchors, LossBatch
from medclip_debias.losses.policy import LateStart, LateStartSettings, register


class FNCSettings(LateStartSettings):
    """Settings of `FalseNegativeCancellation`; ``alpha`` 0 removes nothing."""

    kind: Literal["fnc"] = "fnc"
    alpha: float = Field(0.01, ge=0, lt=1)
    keep_mass: bool = True


@register(
    "fnc",
    FNCSettings,
    rowwise=True,
    formula="W = 0 where s_jn is above the (1 - alpha) quantile of row j",
    paper="False negative cancellation, Huynh et al. (2022)",
)
class FalseNegativeCancellation(LateStart):
    """``W = 0`` above the ``1 - alpha`` quantile of the anchor's negatives in the batch.

    Of N negatives the ``ceil(alpha (N - 1))`` most similar ones, also among equal similarities.
    Before ``start`` nothing; the only state is how many steps it has seen, for each side.
    """

    settings: FNCSettings
    steps: Tensor

    def __init__(self, settings: FNCSettings | None = None) -> None:
        super().__init__(settings)
        self.register_buffer("steps", torch.zeros(len(SIDES), dtype=torch.int64))

    def forward(self, anchors: Anchors, batch: LossBatch) -> Tensor:  # noqa: ARG002
        """Weights ``[A, C]``, 0 or 1."""
        side = SIDES.index(anchors.side)
        # Without a late start nothing has to be read back from the device.
        early = self.start > 0 and int(self.steps[side]) < self.start
        if self.training:
            self.steps[side] += 1
        if early:
            return torch.ones_like(anchors.negatives)
        total = anchors.negatives.sum(dim=1)
        # The small term: 0.07 x 100 must be 7, not the next integer above 7.000000000000001.
        top = (self.settings.alpha * (total - 1).double() - 1e-9).ceil().long()
        top = top.clamp(min=1 if self.settings.alpha > 0 else 0)
        return ~largest(anchors.logits.detach(), anchors.negatives, top)


def largest(values: Tensor, mask: Tensor, count: Tensor) -> Tensor:
    """``[A, C]`` bool: the ``count`` ``[A]`` largest (or all) of each row where ``mask``."""
    result = torch.zeros_like(mask)
    most = min(int(count.max()), mask.shape[1]) if count.numel() else 0
    if most <= 0:
        return result
    columns = torch.where(mask, values, -torch.inf).topk(most, dim=1).indices
    wanted = torch.arange(most, device=count.device) < count[:, None]
    return result.scatter_(1, columns, wanted) & mask
