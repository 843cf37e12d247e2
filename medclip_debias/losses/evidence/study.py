"""Evidence from the study alone: its other images and sentences agree, nothing else is known."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.pair_evidence import EvidenceSettings, PairEvidence


class StudySettings(EvidenceSettings):
    """Settings of `Study`."""

    kind: Literal["study"] = "study"


class Study(PairEvidence[StudySettings]):
    """1 for further images and sentences of the anchor's own study, 0 elsewhere.

    Every kind of evidence says that of the own study; this one says nothing else. So
    ``multi_positive`` with it has the M views of a study as its positives, and with one image a
    study it is its core.

    Example:
        >>> import torch
        >>> batch = ContrastiveBatch(
        ...     torch.zeros(3, 3), torch.tensor(1.0), study_of_image=torch.tensor([4, 4, 9])
        ... )
        >>> Study()(batch.anchors("text_to_image")[0], batch)
        tensor([[0., 1., 0.],
                [1., 0., 0.],
                [0., 0., 0.]])
    """

    formula: ClassVar[str] = "1 where anchor and candidate are of one study"
    paper: ClassVar[str] = "this project"

    @property
    def reads(self) -> frozenset[str]:
        """Nothing that must be there: without ``study_of_image`` each image is its own study."""
        return frozenset()

    def values(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:  # noqa: ARG002
        """``[A, C]``, 0: the own study is seen to by the base."""
        return torch.zeros_like(anchors.logits)
