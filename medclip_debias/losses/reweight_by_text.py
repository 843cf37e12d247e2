"""Policy: the more a negative's text is like the anchor's, the less it weighs."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from medclip_debias.losses.base import Anchors, ContrastiveBatch
from medclip_debias.losses.negatives import NegativePolicy, PolicySettings


class ReweightByTextSettings(PolicySettings):
    """Settings of `ReweightByText`; ``keep_mass`` is on: the weights sum to N."""

    kind: Literal["reweight_by_text"] = "reweight_by_text"
    beta: float = Field(1.0, ge=0, le=20)
    keep_mass: bool = True


class ReweightByText(NegativePolicy):
    """``W`` proportional to ``exp(-beta cos)``, rescaled to the sum N.

    Example:
        >>> import torch
        >>> batch = ContrastiveBatch(
        ...     torch.zeros(3, 3), torch.tensor(1.0), text_similarity=torch.eye(3)
        ... )
        >>> ReweightByText().apply_to(batch.anchors("text_to_image")[0], batch).weights[0]
        tensor([0., 1., 1.])
    """

    kind: ClassVar[str] = "reweight_by_text"
    settings_class: ClassVar[type[PolicySettings]] = ReweightByTextSettings
    formula: ClassVar[str] = "W = N exp(-beta cos(text_j, text_n)) / sum_n exp(-beta cos)"
    paper: ClassVar[str] = "Sample-specific debiasing (2023), table 1; Robinson et al. (2021)"
    settings: ReweightByTextSettings

    @property
    def requires(self) -> frozenset[str]:
        """``text_similarity``."""
        return frozenset({"text_similarity"})

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]``, above 0."""
        cosines = batch.needed("text_similarity", self.kind).to(anchors.logits.dtype)
        return (-self.settings.beta * anchors.between_texts(cosines, batch)).exp()
