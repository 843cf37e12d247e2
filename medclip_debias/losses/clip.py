"""InfoNCE (van den Oord et al. 2018), and CLIP (Radford et al. 2021), which is it both ways.

With ``s+`` the scaled similarity of an anchor and its own candidate, ``s_n`` those of the others
and ``W_n`` the weights that policies gave them::

    InfoNCE = -log(pos / (pos + neg)),   pos = exp(s+),   neg = sum_n W_n exp(s_n)
    CLIP    = 1/2 (InfoNCE text to image + InfoNCE image to text)
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, Direction, LossBatch, masked_logsumexp
from medclip_debias.losses.objective import ContrastiveLoss, ContrastiveSettings, Losses, register


def infonce(anchors: Anchors) -> Tensor:
    """Loss of each anchor ``[A]``; 0, with gradient 0, for one without negatives.

    ``log(1 + exp(l))`` with ``l = log(neg / pos)``, as ``m + log(exp(l - m) + exp(-m))`` with
    ``m = max(l, 0)`` held constant.
    """
    l = masked_logsumexp(anchors.weighted_logits(), anchors.negatives)  # noqa: E741
    m = l.detach().clamp(min=0)
    ratio = (l - m).exp()
    # Where m = 0 the same number, without losing the digits of a loss near 0.
    loss = torch.where(m > 0, m + (ratio + (-m).exp()).log(), torch.log1p(ratio))
    return torch.where(anchors.negatives.any(dim=1), loss, 0.0)


class InfoNCESettings(ContrastiveSettings):
    """Settings of `InfoNCE`."""

    kind: Literal["infonce"] = "infonce"


@register(
    "infonce",
    InfoNCESettings,
    rowwise=True,
    formula="-log pos / (pos + neg)",
    paper="van den Oord et al. (2018); sample-specific debiasing, eq. 3",
)
class InfoNCE(ContrastiveLoss):
    """InfoNCE, from sentences to images by default.

    Example:
        >>> from medclip_debias.losses import ContrastiveBatch
        >>> InfoNCE()(ContrastiveBatch(torch.eye(3), torch.tensor(14.0))).loss.item() < 0.01
        True
    """

    def per_anchor(self, anchors: Anchors, batch: LossBatch) -> Losses:  # noqa: ARG002
        """See `infonce`."""
        return infonce(anchors), {}


class CLIPSettings(ContrastiveSettings):
    """Settings of `CLIP`."""

    kind: Literal["clip"] = "clip"
    direction: Direction = "symmetric"


@register(
    "clip",
    CLIPSettings,
    rowwise=True,
    formula="1/2 (InfoNCE text to image + InfoNCE image to text)",
    paper="CLIP, Radford et al. (2021)",
)
class CLIP(InfoNCE):
    """Symmetric InfoNCE: the mean of both cross-entropies.

    Example:
        >>> from medclip_debias.losses import ContrastiveBatch
        >>> images, sentences = torch.eye(4), torch.eye(4)
        >>> batch = ContrastiveBatch.from_embeddings(images, sentences, 14.0)
        >>> CLIP()(batch).loss.item() < 0.001
        True
    """
