"""Policies that mask: never push an anchor from its own study, or from the same sentence."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from medclip_debias.losses.anchors import Anchors, same_study
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.policy import NegativePolicy, PolicySettings


class MaskSameStudySettings(PolicySettings):
    """Settings of `MaskSameStudy`."""

    kind: Literal["mask_same_study"] = "mask_same_study"


class MaskSameStudy(NegativePolicy[MaskSameStudySettings]):
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

    whole_batch = None
    formula: ClassVar[str] = "W = 0 where anchor and candidate are of one study"
    paper: ClassVar[str] = "this project"

    @property
    def requires(self) -> frozenset[str]:
        """``sample_ids``."""
        return frozenset({"sample_ids"})

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]``, 0 or 1."""
        return ~same_study(anchors, batch, self.kind)


class MaskIdenticalTextSettings(PolicySettings):
    """Settings of `MaskIdenticalText`."""

    kind: Literal["mask_identical_text"] = "mask_identical_text"


class MaskIdenticalText(NegativePolicy[MaskIdenticalTextSettings]):
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

    whole_batch = None
    formula: ClassVar[str] = "W = 0 where anchor and candidate have the same sentence"
    paper: ClassVar[str] = "this project"

    @property
    def requires(self) -> frozenset[str]:
        """``text_ids``."""
        return frozenset({"text_ids"})

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]``, 0 or 1."""
        ids = batch.needed("text_ids", self.kind)
        same = (ids[:, None] == ids[None, :]).to(anchors.logits.dtype)
        return anchors.between_texts(same, batch) == 0
