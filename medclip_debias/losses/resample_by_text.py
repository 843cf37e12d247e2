"""Policy: keep a random part of the negatives, rather those whose text is unlike the anchor's."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.base import Anchors, ContrastiveBatch
from medclip_debias.losses.negatives import NegativePolicy, PolicySettings, largest


class ResampleByTextSettings(PolicySettings):
    """Settings of `ResampleByText`; ``keep_mass`` is on: each one drawn weighs N / drawn."""

    kind: Literal["resample_by_text"] = "resample_by_text"
    share: float = Field(0.5, gt=0, le=1)
    beta: float = Field(1.0, ge=0, le=100)
    keep_mass: bool = True


class ResampleByText(NegativePolicy):
    """Draw ``ceil(share N)`` negatives without replacement, by probability ``exp(-beta cos)``.

    The draw takes the largest of ``-beta cos + Gumbel noise``, which is exactly drawing one
    after the other in proportion to what is left (Efraimidis and Spirakis 2006). It depends on
    the batch's ``seed`` alone.

    Example:
        >>> batch = ContrastiveBatch(
        ...     torch.zeros(5, 5), torch.tensor(1.0), text_similarity=torch.eye(5), seed=0
        ... )
        >>> anchors = ResampleByText().apply_to(batch.anchors("text_to_image")[0], batch)
        >>> anchors.weights.sum(dim=1), anchors.negatives.sum(dim=1)
        (tensor([4., 4., 4., 4., 4.]), tensor([2, 2, 2, 2, 2]))
    """

    kind: ClassVar[str] = "resample_by_text"
    settings_class: ClassVar[type[PolicySettings]] = ResampleByTextSettings
    formula: ClassVar[str] = "W = N / drawn on ceil(share N) negatives drawn by exp(-beta cos)"
    paper: ClassVar[str] = "Sample-specific debiasing (2023), table 1"
    settings: ResampleByTextSettings

    @property
    def requires(self) -> frozenset[str]:
        """``text_similarity`` and ``seed``."""
        return frozenset({"text_similarity", "seed"})

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]``, 0 or 1."""
        cosines = batch.needed("text_similarity", self.kind).double()
        stream = ("text", "image", "view").index(anchors.side)
        generator = batch.generator(self.kind, stream)
        noise = torch.rand(anchors.logits.shape, generator=generator, dtype=torch.float64)
        gumbel = -(-noise.clamp(min=1e-300).log()).log().to(cosines.device)
        keys = gumbel - self.settings.beta * anchors.between_texts(cosines, batch)
        total = anchors.negatives.sum(dim=1)
        # The small term: 0.2 x 5 must be 1, not the next integer above 1.0000000000000002.
        drawn = (self.settings.share * total.double() - 1e-9).ceil().long()
        return largest(keys, anchors.negatives, drawn)
