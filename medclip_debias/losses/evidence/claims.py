"""Evidence from what both reports state: claims about findings, read from their sentences."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.pair_evidence import EvidenceSettings, PairEvidence, of_pairs


class ClaimsSettings(EvidenceSettings):
    """Settings of `Claims`.

    ``always`` is the share of the training reports that must mention a finding for "not mentioned"
    to mean absent (the closed world); above 1 no finding is. ``uncertain`` is the confidence of
    what rests on an uncertain claim.
    """

    kind: Literal["claims"] = "claims"
    always: float = Field(0.5, gt=0, le=2)
    uncertain: float = Field(0.5, ge=0, le=1)


def claim_evidence(stated: Tensor, claims: Tensor) -> Tensor:
    """Least evidence over the claims of each sentence, for each image.

    Args:
        stated: ``[I, P]`` what the report of each image states about P propositions, in
            hundredths: 100 certainly true, -100 certainly false, 0 unknown.
        claims: ``[T, L]`` claims of each sentence: ``p + 1`` where proposition p is stated true,
            ``-(p + 1)`` where it is stated false, 0 for none.

    Returns:
        ``[I, T]`` in [-1, 1]: above 0 only where all claims hold, below 0 where one of them is
        contradicted; 0 for a sentence without claims.

    Example:
        >>> report = torch.tensor([[100, -100, 0]])  # cardiomegaly, no effusion
        >>> sentences = torch.tensor([[1, 0], [1, -2], [2, 0], [3, 1]])
        >>> claim_evidence(report, sentences)
        tensor([[ 1.,  1., -1.,  0.]])
    """
    least = torch.full((len(stated), len(claims)), 100, device=stated.device, dtype=torch.int16)
    for claim in claims.unbind(dim=1):
        place = (claim.abs().long() - 1).clamp(min=0)
        value = stated[:, place].to(torch.int16) * claim.sign().to(torch.int16)
        least = torch.where(claim == 0, least, torch.minimum(least, value))
    says = (claims != 0).any(dim=1)
    return torch.where(says, least, 0) / 100


class Claims(PairEvidence[ClaimsSettings]):
    """The least that the image's report says for any claim of the sentence (`claim_evidence`).

    Example:
        >>> batch = ContrastiveBatch(
        ...     torch.zeros(3, 3),
        ...     torch.tensor(1.0),
        ...     stated=torch.tensor([[-100, 0], [-100, 100], [100, 0]]),
        ...     claims=torch.tensor([[-1], [2], [1]]),  # "No effusion." "Nodule." "Effusion."
        ... )
        >>> Claims()(batch.anchors("text_to_image")[0], batch)
        tensor([[ 0.,  1., -1.],
                [ 0.,  0.,  0.],
                [-1., -1.,  0.]])
    """

    formula: ClassVar[str] = "min over the claims of sentence j of what report i states about each"
    paper: ClassVar[str] = "this project; CoNNS and VECL decide pairs by evidence too"

    @property
    def reads(self) -> frozenset[str]:
        """``stated`` and ``claims``."""
        return frozenset({"stated", "claims"})

    def values(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """``[A, C]`` in [-1, 1]."""
        stated, claims = (batch.needed(name, self.kind) for name in ("stated", "claims"))
        return of_pairs(claim_evidence(stated, claims), anchors, batch)
