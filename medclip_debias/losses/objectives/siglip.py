"""SigLIP: every pair of an image and a sentence is a yes-or-no question of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from medclip_debias.losses.anchors import Anchors
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.core import ContrastiveCore, CoreSettings
from medclip_debias.losses.objective import LossOutput


class SigLIPSettings(CoreSettings):
    """Settings of `SigLIP`; ``initial_bias`` is the paper's, and is learned from there.

    The sum over all pairs is the same in both directions, so there is only one.
    """

    kind: Literal["siglip"] = "siglip"
    direction: Literal["text_to_image"] = "text_to_image"
    initial_bias: float = -10.0


class SigLIP(ContrastiveCore[SigLIPSettings]):
    """Pairwise sigmoid loss (Zhai et al. 2023, equation 1).

    With the learned bias ``b`` (a parameter of this module: give it to the optimiser)::

        loss_j = -log sigmoid(s+ + b) - sum_n W_n log sigmoid(-(s_n + b))

    Other sentences of the anchor's own image are no pair and no negative. A positive needs no
    negatives here: without any, its own term remains.

    Example:
        >>> batch = ContrastiveBatch(torch.eye(3) * 2 - 1, torch.tensor(20.0))
        >>> SigLIP()(batch).loss.item() < 0.001
        True
    """

    whole_batch = None
    formula: ClassVar[str] = "-log sigmoid(s+ + b) - sum_n log sigmoid(-(s_n + b))"
    paper: ClassVar[str] = "Sigmoid loss, Zhai et al. (2023), eq. 1"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = ({"initial_bias": -1.0},)
    positive_alone: bool = True

    def __init__(self, settings: SigLIPSettings | None = None) -> None:
        super().__init__(settings)
        self.bias = nn.Parameter(torch.tensor(float(self.settings.initial_bias)))

    def over(
        self,
        sets: list[Anchors],
        diagnostics: dict[str, Tensor],
        batch: ContrastiveBatch,  # noqa: ARG002
    ) -> LossOutput:
        """Losses ``[T]``, one a sentence: its pair and its unpaired images."""
        (anchors,) = sets
        bias = self.bias.to(anchors.logits.dtype)
        paired = _log_one_plus_exp(-(anchors.positive + bias))
        each = _log_one_plus_exp(anchors.logits + bias)
        weights = anchors.negatives if anchors.weights is None else anchors.weights
        unpaired = (each * weights).sum(dim=1)
        diagnostics["bias"] = self.bias.detach().clone()
        return LossOutput(paired + unpaired, diagnostics)


def carry_bias(objective: nn.Module, bias: float) -> None:
    """Start the bias of every pairwise sigmoid in ``objective`` with ``bias``.

    One whose settings give another ``initial_bias`` than the default keeps that.
    """
    usual = SigLIPSettings.model_fields["initial_bias"].default
    for module in objective.modules():
        if isinstance(module, SigLIP) and module.settings.initial_bias == usual:
            module.bias.data.fill_(bias)


def _log_one_plus_exp(x: Tensor) -> Tensor:
    # Not softplus, whose threshold costs digits in float64.
    return torch.logaddexp(x, torch.zeros_like(x))
