"""Policy: never push an anchor from what belongs to its own study."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from medclip_debias.losses.base import Anchors, ContrastiveBatch, same_study
from medclip_debias.losses.negatives import NegativePolicy, PolicySettings


class MaskSameStudySettings(PolicySettings):
    """Settings of `MaskSameStudy`."""

    kind: Literal["mask_same_study"] = "mask_same_study"


class MaskSameStudy(NegativePolicy):
    """``W = 0`` where anchor and candidate have the same ``sample_ids`` (two views of a study).

    Example:
        >>> import torch
        >>> batch = ContrastiveBatch(
        ...     torch.zeros(3, 3), torch.tensor(1.0), sample_ids=torch.tensor([7, 7, 9])
        ... )
        >>> MaskSameStudy().apply_to(batch.anchors("text_to_image")[0], batch).negatives
        tensor([[False, False,  True],
                [False, False,  True],
                [ True,  True, False]])
    """

    kind: ClassVar[str] = "mask_same_study"
    settings_class: ClassVar[type[PolicySettings]] = MaskSameStudySettings
    formula: ClassVar[str] = "W = 0 where anchor and candidate are of one study"
    paper: ClassVar[str] = "this project"
    settings: MaskSameStudySettings

    @property
    def requires(self) -> frozenset[str]:
        """``sample_ids``."""
        return frozenset({"sample_ids"})

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]``, 0 or 1."""
        return ~same_study(anchors, batch, self.kind)
