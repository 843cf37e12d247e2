"""Evidence from the likeness of the sentences alone, polarity and all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.pair_evidence import EvidenceSettings, PairEvidence


class TextSettings(EvidenceSettings):
    """Settings of `Text`; ``threshold`` is a cosine of frozen text embeddings."""

    kind: Literal["text"] = "text"
    threshold: float = Field(0.9, ge=-1, le=1)


class Text(PairEvidence[TextSettings]):
    """1 where a sentence of the candidate is nearly the anchor's, 0 elsewhere.

    Frozen embeddings put "effusion" near "no effusion", which is what claims do better.

    Example:
        >>> import torch
        >>> alike = torch.tensor([[1.0, 0.95], [0.95, 1.0]])
        >>> batch = ContrastiveBatch(torch.zeros(2, 2), torch.tensor(1.0), text_similarity=alike)
        >>> Text()(batch.anchors("text_to_image")[0], batch)
        tensor([[0., 1.],
                [1., 0.]])
    """

    formula: ClassVar[str] = "1 where cos(text_j, text_n) > threshold"
    paper: ClassVar[str] = "sample-specific debiasing (2023), table 1, as positives"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"threshold": 0.3},)

    @property
    def reads(self) -> frozenset[str]:
        """``text_similarity``."""
        return frozenset({"text_similarity"})

    def values(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """``[A, C]``, 0 or 1."""
        cosines = batch.needed("text_similarity", self.kind)
        return anchors.between_texts(cosines, batch) > self.settings.threshold
