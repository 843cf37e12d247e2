"""Evidence from a table that knows which studies agree with which sentences (an oracle)."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from torch import Tensor

from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.pair_evidence import EvidenceSettings, PairEvidence, of_pairs


class KnownSettings(EvidenceSettings):
    """Settings of `Known`; ``path`` as `medclip_debias.data.agreement` writes it."""

    kind: Literal["known"] = "known"
    path: Path | None = None


class Known(PairEvidence[KnownSettings]):
    """1 where the table says that the image agrees with the sentence, -1 where it does not.

    Example:
        >>> import torch
        >>> batch = ContrastiveBatch(
        ...     torch.zeros(2, 2),
        ...     torch.tensor(1.0),
        ...     text_ids=torch.tensor([0, 2]),
        ...     agreement=torch.tensor([[True, False, False], [True, False, True]]),
        ... )
        >>> Known()(batch.anchors("text_to_image")[0], batch)
        tensor([[ 0.,  1.],
                [-1.,  0.]])
    """

    formula: ClassVar[str] = "1 where a table says that image and sentence agree, else -1"
    paper: ClassVar[str] = "this project (oracle)"

    @property
    def reads(self) -> frozenset[str]:
        """``agreement`` and ``text_ids``."""
        return frozenset({"agreement", "text_ids"})

    def values(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """``[A, C]``, -1 or 1."""
        agreement = batch.needed("agreement", self.kind)
        agree = agreement[:, batch.needed("text_ids", self.kind)]
        return of_pairs(2.0 * agree - 1.0, anchors, batch)
