"""Policy: never push a sentence from an image whose report says literally the same."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from medclip_debias.losses.base import Anchors, ContrastiveBatch
from medclip_debias.losses.negatives import NegativePolicy, PolicySettings


class MaskIdenticalTextSettings(PolicySettings):
    """Settings of `MaskIdenticalText`."""

    kind: Literal["mask_identical_text"] = "mask_identical_text"


class MaskIdenticalText(NegativePolicy):
    """``W = 0`` where anchor and candidate have the same sentence (equal ``text_ids``).

    Example:
        >>> import torch
        >>> batch = ContrastiveBatch(
        ...     torch.zeros(3, 3), torch.tensor(1.0), text_ids=torch.tensor([5, 5, 6])
        ... )
        >>> MaskIdenticalText().apply_to(batch.anchors("image_to_text")[0], batch).negatives
        tensor([[False, False,  True],
                [False, False,  True],
                [ True,  True, False]])
    """

    kind: ClassVar[str] = "mask_identical_text"
    settings_class: ClassVar[type[PolicySettings]] = MaskIdenticalTextSettings
    formula: ClassVar[str] = "W = 0 where anchor and candidate have the same sentence"
    paper: ClassVar[str] = "this project"
    settings: MaskIdenticalTextSettings

    @property
    def requires(self) -> frozenset[str]:
        """``text_ids``."""
        return frozenset({"text_ids"})

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]``, 0 or 1."""
        ids = batch.needed("text_ids", self.kind)
        same = (ids[:, None] == ids[None, :]).to(anchors.logits.dtype)
        return anchors.between_texts(same, batch) == 0
