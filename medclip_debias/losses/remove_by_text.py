"""Policy: drop negatives whose text is too much like the anchor's."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from medclip_debias.losses.base import Anchors, ContrastiveBatch
from medclip_debias.losses.negatives import NegativePolicy, PolicySettings


class RemoveByTextSettings(PolicySettings):
    """Settings of `RemoveByText`; the paper gives no threshold, it was searched for."""

    kind: Literal["remove_by_text"] = "remove_by_text"
    threshold: float = Field(0.9, ge=-1, le=1)


class RemoveByText(NegativePolicy):
    """``W = 0`` where the cosine of the frozen text embeddings exceeds ``threshold``.

    A candidate image counts by the most similar of its sentences.

    Example:
        >>> import torch
        >>> alike = torch.tensor([[1.0, 0.95], [0.95, 1.0]])
        >>> batch = ContrastiveBatch(torch.zeros(2, 2), torch.tensor(1.0), text_similarity=alike)
        >>> RemoveByText().apply_to(batch.anchors("text_to_image")[0], batch).negatives.any()
        tensor(False)
    """

    kind: ClassVar[str] = "remove_by_text"
    settings_class: ClassVar[type[PolicySettings]] = RemoveByTextSettings
    formula: ClassVar[str] = "W = 0 where cos(text_j, text_n) > threshold"
    paper: ClassVar[str] = "Sample-specific debiasing (2023), table 1"
    settings: RemoveByTextSettings

    @property
    def requires(self) -> frozenset[str]:
        """``text_similarity``."""
        return frozenset({"text_similarity"})

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]``, 0 or 1."""
        cosines = batch.needed("text_similarity", self.kind)
        return anchors.between_texts(cosines, batch) <= self.settings.threshold
