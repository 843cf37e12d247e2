"""SupCon (Khosla et al. 2020, equation 2, ``L_out``): every candidate of the class is a positive.

With ``P(j)`` the anchor's own positive and all candidates of its class::

    loss = -1/|P(j)| sum_{p in P(j)} log softmax_p(s_jp)
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from medclip_debias.losses.anchors import Anchors, Direction, LossBatch
from medclip_debias.losses.labels import CHEX5_NAMES, Uncertain, alike_by_labels
from medclip_debias.losses.objective import ContrastiveLoss, ContrastiveSettings, Losses, register
from medclip_debias.losses.pairs import (
    between_images,
    same_text,
    soft_cross_entropy,
    with_candidates,
)


def supcon(anchors: Anchors, same_class: Tensor) -> Tensor:
    """Loss ``[A]``; ``same_class`` ``[A, C]`` are positives too, whatever policies say."""
    positives = same_class | anchors.is_positive
    target = positives.to(anchors.logits.dtype) / positives.sum(dim=1, keepdim=True)
    return soft_cross_entropy(with_candidates(anchors, same_class), target)


class SupConSettings(ContrastiveSettings):
    """Settings of `SupCon`; ``match`` says who is of the anchor's class: ``equal`` label vectors, a
    ``shared`` present label, or the same ``text``.
    """

    kind: Literal["supcon"] = "supcon"
    direction: Direction = "symmetric"
    match: Literal["equal", "shared", "text"] = "equal"
    labels: tuple[str, ...] = CHEX5_NAMES
    uncertain: Uncertain = "as_negative"


@register(
    "supcon",
    SupConSettings,
    rowwise=True,
    formula="-1/|P| sum_{p in P} log softmax_p(s_jp), P = same class",
    paper="Supervised contrastive learning, Khosla et al. (2020), eq. 2",
)
class SupCon(ContrastiveLoss):
    """Supervised contrastive loss.

    Example:
        >>> from medclip_debias.losses import ContrastiveBatch
        >>> import torch
        >>> labels = torch.tensor([[1.0], [1.0], [0.0]])
        >>> similarity = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> batch = ContrastiveBatch(similarity, torch.tensor(50.0), labels=labels)
        >>> torch.round(SupCon()(batch).per_anchor, decimals=3)  # log 2: two equal positives
        tensor([0.6930, 0.6930, 0.0000])
    """

    settings: SupConSettings

    def chosen_fields(self) -> set[str]:
        """What says who is of the anchor's class."""
        return {"text_ids" if self.settings.match == "text" else "labels"}

    def per_anchor(self, anchors: Anchors, batch: LossBatch) -> Losses:
        """See `supcon`."""
        s = self.settings
        if s.match == "text":
            same = same_text(anchors, batch)
        else:
            alike = alike_by_labels(batch, s.match, s.labels, s.uncertain)
            same = between_images(alike, anchors)
        same = same & anchors.others
        return supcon(anchors, same), {"positives": 1 + same.sum(dim=1).to(anchors.logits.dtype)}
