"""SigLIP (Zhai et al. 2023, equation 1): every pair is a yes-or-no question of its own.

With the learned bias ``b``, the anchor's own ``s+`` and the weights ``W_n`` of its negatives::

    loss_j = -log sigmoid(s+ + b) - sum_n W_n log sigmoid(-(s_n + b))
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from medclip_debias.losses.anchors import Anchors, LossBatch
from medclip_debias.losses.objective import ContrastiveLoss, ContrastiveSettings, Losses, register


def siglip(anchors: Anchors, bias: Tensor) -> Tensor:
    """Loss of each sentence ``[A]``: its pair and its unpaired images.

    Other sentences of the own image are neither; without negatives the pair's own term remains.
    """
    weights = anchors.negatives if anchors.weights is None else anchors.weights
    paired = log_one_plus_exp(-(anchors.positive + bias))
    return paired + (log_one_plus_exp(anchors.logits + bias) * weights).sum(dim=1)


def log_one_plus_exp(x: Tensor) -> Tensor:
    """``log(1 + exp(x)) = -log sigmoid(-x)``; torch's softplus loses digits at its threshold."""
    return torch.logaddexp(x, torch.zeros_like(x))


class SigLIPSettings(ContrastiveSettings):
    """Settings of `SigLIP`; the sum over all pairs is the same in both directions."""

    kind: Literal["siglip"] = "siglip"
    direction: Literal["text_to_image"] = "text_to_image"
    initial_bias: float = -10.0


@register(
    "siglip",
    SigLIPSettings,
    rowwise=True,
    formula="-log sigmoid(s+ + b) - sum_n log sigmoid(-(s_n + b))",
    paper="Sigmoid loss, Zhai et al. (2023), eq. 1",
)
class SigLIP(ContrastiveLoss):
    """Pairwise sigmoid loss; its ``bias`` is a parameter of this module: give it to the optimiser.

    Example:
        >>> from medclip_debias.losses import ContrastiveBatch
        >>> batch = ContrastiveBatch(torch.eye(3) * 2 - 1, torch.tensor(20.0))
        >>> SigLIP()(batch).loss.item() < 0.001
        True
    """

    settings: SigLIPSettings

    def __init__(self, settings: SigLIPSettings | None = None) -> None:
        super().__init__(settings)
        self.bias = nn.Parameter(torch.tensor(float(self.settings.initial_bias)))

    def targets(self, anchors: Anchors, q: Tensor) -> Tensor:
        """Loss ``[A]`` to the targets ``q`` ``[A, C]`` (`medclip_debias.losses.multi_positive`)."""
        logits = anchors.logits + self.bias.to(anchors.logits.dtype)
        weights = anchors.negatives if anchors.weights is None else anchors.weights
        yes, no = q + anchors.is_positive, (1 - q) * weights
        return (yes * log_one_plus_exp(-logits) + no * log_one_plus_exp(logits)).sum(dim=1)

    def per_anchor(self, anchors: Anchors, batch: LossBatch) -> Losses:  # noqa: ARG002
        """See `siglip`."""
        return siglip(anchors, self.bias.to(anchors.logits.dtype)), {"bias": self.bias.detach()}


def carry_bias(objective: nn.Module, bias: float) -> None:
    """Start the bias of every pairwise sigmoid with ``bias``, unless its settings chose one."""
    usual = SigLIPSettings.model_fields["initial_bias"].default
    for module in objective.modules():
        if isinstance(module, SigLIP) and module.settings.initial_bias == usual:
            module.bias.data.fill_(bias)
