"""SupCon: every candidate of the anchor's class is a positive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, Direction
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.core import ContrastiveCore, CoreSettings
from medclip_debias.losses.labels import (
    CHEX5_NAMES,
    Uncertain,
    equal_vectors,
    label_sets,
    shared_present,
)
from medclip_debias.losses.objective import LossOutput
from medclip_debias.losses.targets import soft_cross_entropy


class SupConSettings(CoreSettings):
    """Settings of `SupCon`.

    ``match`` says who is of the anchor's class: ``equal`` label vectors, a ``shared`` present
    label, or literally the same ``text``.
    """

    kind: Literal["supcon"] = "supcon"
    direction: Direction = "symmetric"
    match: Literal["equal", "shared", "text"] = "equal"
    labels: tuple[str, ...] = CHEX5_NAMES
    uncertain: Uncertain = "as_negative"


class SupCon(ContrastiveCore[SupConSettings]):
    """Supervised contrastive loss (Khosla et al. 2020, equation 2, ``L_out``).

    With ``P(j)`` the anchor's own positive and all candidates of its class::

        loss = -1/|P(j)| sum_{p in P(j)} log softmax_p(s_jp)

    Policies act on the candidates that are not in ``P(j)``.

    Example:
        >>> labels = torch.tensor([[1.0], [1.0], [0.0]])
        >>> similarity = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> batch = ContrastiveBatch(similarity, torch.tensor(50.0), labels=labels)
        >>> torch.round(SupCon()(batch).per_anchor, decimals=3)  # log 2: two equal positives
        tensor([0.6930, 0.6930, 0.0000])
    """

    whole_batch = None
    formula: ClassVar[str] = "-1/|P| sum_{p in P} log softmax_p(s_jp), P = same class"
    paper: ClassVar[str] = "Supervised contrastive learning, Khosla et al. (2020), eq. 2"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"match": "shared"},
        {"match": "text"},
    )

    @property
    def requires(self) -> frozenset[str]:
        """What the policies read, and ``labels`` or ``text_ids``."""
        return super().requires | {"text_ids" if self.settings.match == "text" else "labels"}

    def over(
        self, sets: list[Anchors], diagnostics: dict[str, Tensor], batch: ContrastiveBatch
    ) -> LossOutput:
        """Losses of the batch's anchors ``[T]`` (``symmetric``: the mean of the two)."""
        losses, counts = [], []
        for anchors, before in zip(sets, batch.anchors(self.settings.direction), strict=True):
            same = self._same_class(before, batch) & before.negatives
            positives = same | before.is_own
            count = positives.sum(dim=1, keepdim=True)
            target = positives.to(anchors.logits.dtype) / count
            losses.append(soft_cross_entropy(with_candidates(anchors, same), target))
            counts.append(count.to(target.dtype))
        diagnostics["positives"] = batch.mean(torch.stack(counts))
        return LossOutput(torch.stack(losses).mean(dim=0), diagnostics)

    def _same_class(self, anchors: Anchors, batch: ContrastiveBatch) -> Tensor:
        s = self.settings
        if s.match == "text":
            ids = batch.needed("text_ids", self.kind)
            equal = (ids[:, None] == ids[None, :]).to(anchors.logits.dtype)
            return anchors.between_texts(equal, batch) > 0
        sets = label_sets(batch, s.labels, s.uncertain, self.kind)
        alike = (equal_vectors if s.match == "equal" else shared_present)(*sets)
        rows, columns = anchors.images(batch)
        return alike[rows][:, columns]


def with_candidates(anchors: Anchors, kept: Tensor) -> Anchors:
    """The anchors with the candidates in ``kept`` back at weight 1, whatever policies did."""
    weights = anchors.weights
    if weights is not None:
        weights = torch.where(kept, torch.ones_like(weights), weights)
    return replace(anchors, negatives=anchors.negatives | kept, weights=weights)
