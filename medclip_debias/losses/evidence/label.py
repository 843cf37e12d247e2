"""Evidence from label tables: the studies' labels agree or differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.labels import (
    CHEX5_NAMES,
    Uncertain,
    equal_vectors,
    label_sets,
    shared_present,
)
from medclip_debias.losses.pair_evidence import EvidenceSettings, PairEvidence


class LabelSettings(EvidenceSettings):
    """Settings of `Label`: as those of the policy ``remove_by_label``."""

    kind: Literal["label"] = "label"
    match: Literal["shared", "equal"] = "equal"
    labels: tuple[str, ...] = CHEX5_NAMES
    uncertain: Uncertain = "as_negative"


class Label(PairEvidence[LabelSettings]):
    """1 where the labels of both studies are equal (or one is shared), 0 elsewhere.

    Labels belong to studies and not to sentences, so nothing is said to contradict.

    Example:
        >>> import torch
        >>> batch = ContrastiveBatch(
        ...     torch.zeros(3, 3), torch.tensor(1.0), labels=torch.tensor([[1.0], [1.0], [0.0]])
        ... )
        >>> Label()(batch.anchors("text_to_image")[0], batch)
        tensor([[0., 1., 0.],
                [1., 0., 0.],
                [0., 0., 0.]])
    """

    formula: ClassVar[str] = "1 where the labels of anchor and candidate are equal, or one shared"
    paper: ClassVar[str] = "Khosla et al. (2020); sample-specific debiasing (2023), table 1"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({}, {"match": "shared"})

    @property
    def reads(self) -> frozenset[str]:
        """``labels``."""
        return frozenset({"labels"})

    def values(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        """``[A, C]``, 0 or 1."""
        s = self.settings
        sets = label_sets(batch, s.labels, s.uncertain, self.kind)
        alike = (shared_present if s.match == "shared" else equal_vectors)(*sets)
        rows, columns = anchors.images(batch)
        return alike[rows][:, columns]
