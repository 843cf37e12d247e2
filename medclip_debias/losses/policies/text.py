"""Policies by text: the more a negative's text is like the anchor's, the less it counts.

Removed above a threshold, weighted down, or sampled more rarely.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.policy import NegativePolicy, PolicySettings, largest


class RemoveByTextSettings(PolicySettings):
    """Settings of `RemoveByText`; the paper gives no threshold, it was searched for."""

    kind: Literal["remove_by_text"] = "remove_by_text"
    threshold: float = Field(0.9, ge=-1, le=1)


class RemoveByText(NegativePolicy[RemoveByTextSettings]):
    """``W = 0`` where the cosine of the frozen text embeddings exceeds ``threshold``.

    A candidate image counts by the most similar of its sentences.

    Example:
        >>> alike = torch.tensor([[1.0, 0.95], [0.95, 1.0]])
        >>> batch = ContrastiveBatch(torch.zeros(2, 2), torch.tensor(1.0), text_similarity=alike)
        >>> RemoveByText().apply_to(batch.anchors("text_to_image")[0], batch).negatives.any()
        tensor(False)
    """

    whole_batch = None
    formula: ClassVar[str] = "W = 0 where cos(text_j, text_n) > threshold"
    paper: ClassVar[str] = "Sample-specific debiasing (2023), table 1"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {"threshold": 0.3},
        {"threshold": 0.3, "keep_mass": True},
    )

    @property
    def requires(self) -> frozenset[str]:
        """``text_similarity``."""
        return frozenset({"text_similarity"})

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]``, 0 or 1."""
        cosines = batch.needed("text_similarity", self.kind)
        return anchors.between_texts(cosines, batch) <= self.settings.threshold


class ReweightByTextSettings(PolicySettings):
    """Settings of `ReweightByText`; ``keep_mass`` is on: the weights sum to N."""

    kind: Literal["reweight_by_text"] = "reweight_by_text"
    beta: float = Field(1.0, ge=0, le=20)
    keep_mass: bool = True


class ReweightByText(NegativePolicy[ReweightByTextSettings]):
    """``W`` proportional to ``exp(-beta cos)``, rescaled to the sum N.

    Example:
        >>> batch = ContrastiveBatch(
        ...     torch.zeros(3, 3), torch.tensor(1.0), text_similarity=torch.eye(3)
        ... )
        >>> ReweightByText().apply_to(batch.anchors("text_to_image")[0], batch).weights[0]
        tensor([0., 1., 1.])
    """

    whole_batch = None
    formula: ClassVar[str] = "W = N exp(-beta cos(text_j, text_n)) / sum_n exp(-beta cos)"
    paper: ClassVar[str] = "Sample-specific debiasing (2023), table 1; Robinson et al. (2021)"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"beta": 2.0},)

    @property
    def requires(self) -> frozenset[str]:
        """``text_similarity``."""
        return frozenset({"text_similarity"})

    def forward(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """Weights ``[A, C]``, above 0."""
        cosines = batch.needed("text_similarity", self.kind).to(anchors.logits.dtype)
        return (-self.settings.beta * anchors.between_texts(cosines, batch)).exp()


class ResampleByTextSettings(PolicySettings):
    """Settings of `ResampleByText`; ``keep_mass`` is on: each of the n sampled weighs N / n."""

    kind: Literal["resample_by_text"] = "resample_by_text"
    share: float = Field(0.5, gt=0, le=1)
    beta: float = Field(1.0, ge=0, le=100)
    keep_mass: bool = True


class ResampleByText(NegativePolicy[ResampleByTextSettings]):
    """Sample ``ceil(share N)`` negatives without replacement, by probability ``exp(-beta cos)``.

    Taken are the largest of ``-beta cos + Gumbel noise``, which is exactly sampling one
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

    whole_batch = "samples for all anchors from one stream of random numbers"
    formula: ClassVar[str] = "W = N / n on n = ceil(share N) negatives sampled by exp(-beta cos)"
    paper: ClassVar[str] = "Sample-specific debiasing (2023), table 1"

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
        sampled = (self.settings.share * total.double() - 1e-9).ceil().long()
        return largest(keys, anchors.negatives, sampled)
