"""Policy: drop the negatives that a table knows to be false (an oracle)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from torch import Tensor

from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.pair_evidence import of_pairs
from medclip_debias.losses.policy import NegativePolicy, PolicySettings


class RemoveKnownSettings(PolicySettings):
    """Settings of `RemoveKnown`; ``path`` as `medclip_debias.data.agreement` writes it."""

    kind: Literal["remove_known"] = "remove_known"
    path: Path | None = None


class RemoveKnown(NegativePolicy[RemoveKnownSettings]):
    """``W = 0`` where the image is known to agree with the sentence.

    No removal of false negatives can know more, but other corrections may gain more: what agrees
    may also be a positive (`multi_positive`). On the phantom all pairs are known; a real archive
    knows them only as far as somebody has judged them.

    Example:
        >>> import torch
        >>> batch = ContrastiveBatch(
        ...     torch.zeros(2, 2),
        ...     torch.tensor(1.0),
        ...     text_ids=torch.tensor([0, 2]),
        ...     agreement=torch.tensor([[True, False, False], [True, False, True]]),
        ... )
        >>> RemoveKnown().apply_to(batch.anchors("text_to_image")[0], batch).negatives
        tensor([[False, False],
                [ True, False]])
    """

    whole_batch = None
    formula: ClassVar[str] = "W = 0 where the image is known to agree with the sentence"
    paper: ClassVar[str] = "this project (oracle)"

    @property
    def requires(self) -> frozenset[str]:
        """``agreement`` and ``text_ids``."""
        return frozenset({"agreement", "text_ids"})

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]``, 0 or 1."""
        agreement = batch.needed("agreement", self.kind)
        agree: Tensor = agreement[:, batch.needed("text_ids", self.kind)]  # [I, T]
        return ~of_pairs(agree, anchors, batch)
