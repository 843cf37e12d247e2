"""Debiased contrastive loss with a class probability for each anchor: the main method.

Sample-specific debiasing (Wang et al. 2023), equations 7 and 8, figure 5; with a constant eta
it is debiased contrastive learning (Chuang et al. 2020), with eta 0 it is InfoNCE.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor

from medclip_debias.losses.base import (
    Anchors,
    ContrastiveBatch,
    LossOutput,
    LossSettings,
    Objective,
    image_anchors,
    text_anchors,
)
from medclip_debias.losses.eta import (
    ETA_MAX,
    ConstantEta,
    EtaSettings,
    LanguageModelEta,
    TableEta,
    eta_of,
)


def debiased_per_anchor(anchors: Anchors, eta: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each anchor, in the form that neither overflows nor cancels to NaN.

    With ``pos = exp(s+)``, ``neg = sum_n exp(s_n)`` over N negatives and ``g2`` the scale::

        Ng   = max((neg - N eta pos) / (1 - eta), N exp(-g2))
        loss = -log(pos / (pos + Ng))

    computed as ``m + log A - log(1 - eta)`` with ``l = logsumexp_n(s_n - s+)``,
    ``m = max(l, 0)`` held constant, and ``A = max(exp(l - m) - N eta exp(-m),
    (1 - eta) exp(log N - g2 - s+ - m)) + (1 - eta) exp(-m)``: one logarithm of a strictly
    positive number (as ``log1p`` where m = 0, for losses near 0). The floor is the paper's
    (section 2.2, A.1; its figure 5 omits it) and is differentiated through ``g2``.

    Args:
        anchors: logits, positives, negatives of A anchors.
        eta: ``[A]`` in [0, `ETA_MAX`].

    Returns:
        Losses ``[A]`` (0, with gradient 0, for an anchor without negatives) and a bool ``[A]``
        that says where the floor took over.
    """
    count = anchors.negatives.sum(dim=1)
    valid = count > 0
    n = count.clamp(min=1).to(anchors.logits.dtype)
    relative = anchors.logits - anchors.positive[:, None]
    # A finite fill for rows without negatives: logsumexp of nothing but -inf has a NaN gradient.
    fill = torch.where(valid, -torch.inf, 0.0).to(relative.dtype)[:, None]
    l = torch.logsumexp(torch.where(anchors.negatives, relative, fill), dim=1)  # noqa: E741
    m = l.detach().clamp(min=0)
    keep = 1 - eta
    corrected = (l - m).exp() - n * eta * (-m).exp()
    floor = keep * (n.log() - anchors.scale - anchors.positive - m).exp()
    mass = torch.maximum(corrected, floor)
    large = m + (mass + keep * (-m).exp()).log() - torch.log1p(-eta)
    # Where m = 0 the same number, without losing the digits of a loss near 0.
    loss = torch.where(m > 0, large, torch.log1p(mass / keep))
    return torch.where(valid, loss, torch.zeros_like(loss)), (corrected < floor) & valid


class DebiasedSettings(LossSettings):
    """Settings of `DebiasedContrastive`."""

    kind: Literal["debiased"] = "debiased"
    eta: EtaSettings = LanguageModelEta()
    direction: Literal["text_to_image", "image_to_text", "symmetric"] = "text_to_image"


class DebiasedContrastive(Objective):
    """Debiased contrastive loss; ``eta`` constant, from a language model, or from a table.

    Args:
        settings: kind of eta and direction. Anchors are sentences and candidates the batch's
            images (``text_to_image``, the paper), or the other way round (``image_to_text``,
            with the eta of the paired sentence), or the mean of both (``symmetric``).

    Diagnostics: ``clamped`` share of anchors on the floor, ``mean_eta``, ``eta_clipped`` number
    of anchors whose eta was cut to 0.99, ``positive_similarity`` and ``negative_similarity``
    (cosine scale).

    Example:
        >>> loss = DebiasedContrastive(DebiasedSettings(eta=ConstantEta(value=0.1)))
        >>> batch = ContrastiveBatch(torch.eye(3), torch.tensor(14.0))
        >>> loss(batch).per_anchor.shape
        torch.Size([3])
    """

    kind: ClassVar[str] = "debiased"
    settings_class: ClassVar[type[LossSettings]] = DebiasedSettings
    formula: ClassVar[str] = (
        "-log pos / (pos + Ng), Ng = max((neg - N eta pos) / (1 - eta), N exp(-g2))"
    )
    paper: ClassVar[str] = "Sample-specific debiasing (2023), eq. 7-8; Chuang et al. (2020)"
    settings: DebiasedSettings

    @property
    def requires(self) -> frozenset[str]:
        """``log_prob`` or ``eta``, by the kind of eta."""
        match self.settings.eta:
            case LanguageModelEta():
                return frozenset({"log_prob"})
            case TableEta():
                return frozenset({"eta"})
        return frozenset()

    def forward(self, batch: ContrastiveBatch) -> LossOutput:
        """Losses of the batch's anchors ``[T]`` (for ``symmetric``: the mean of the two)."""
        raw = eta_of(self.settings.eta, batch)
        eta = raw.clamp(0, ETA_MAX)
        directions = {
            "text_to_image": [text_anchors],
            "image_to_text": [image_anchors],
            "symmetric": [text_anchors, image_anchors],
        }[self.settings.direction]
        losses, clamped = [], []
        for make in directions:
            loss, floored = debiased_per_anchor(make(batch), eta)
            losses.append(loss)
            clamped.append(floored.to(loss.dtype))
        with torch.no_grad():
            own = torch.arange(batch.similarity.shape[0], device=batch.similarity.device)
            paired = own[:, None] == batch.owners[None, :]
            diagnostics = {
                "clamped": torch.stack(clamped).mean(),
                "mean_eta": eta.mean(),
                "eta_clipped": (raw > ETA_MAX).sum(),
                "positive_similarity": batch.similarity[paired].mean(),
                "negative_similarity": _mean(batch.similarity[~paired]),
            }
        return LossOutput(torch.stack(losses).mean(dim=0), diagnostics)


def _mean(values: Tensor) -> Tensor:
    return values.mean() if values.numel() else values.new_zeros(())


class InfoNCESettings(LossSettings):
    """Settings of `InfoNCE`."""

    kind: Literal["infonce"] = "infonce"
    direction: Literal["text_to_image", "image_to_text", "symmetric"] = "text_to_image"


class InfoNCE(DebiasedContrastive):
    """InfoNCE: the debiased loss with eta 0, where its floor can never be reached.

    Example:
        >>> InfoNCE()(ContrastiveBatch(torch.eye(3), torch.tensor(14.0))).loss.item() < 0.01
        True
    """

    kind: ClassVar[str] = "infonce"
    settings_class: ClassVar[type[LossSettings]] = InfoNCESettings
    formula: ClassVar[str] = "-log pos / (pos + neg)"
    paper: ClassVar[str] = "van den Oord et al. (2018); sample-specific debiasing, eq. 3"

    def __init__(self, settings: InfoNCESettings | None = None) -> None:
        direction = (settings or InfoNCESettings()).direction
        super().__init__(DebiasedSettings(eta=ConstantEta(value=0.0), direction=direction))
