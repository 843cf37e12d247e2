"""Debiased contrastive loss with a class probability for each anchor: the main method.

Sample-specific debiasing (Wang et al. 2023), equations 7 and 8, figure 5; with a constant eta
it is debiased contrastive learning (Chuang et al. 2020), with eta 0 it is InfoNCE.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from medclip_debias.losses.base import (
    Anchors,
    ContrastiveBatch,
    LossOutput,
    LossSettings,
    masked_logsumexp,
    same_study,
)
from medclip_debias.losses.eta import (
    ConstantEta,
    EtaSettings,
    LanguageModelEta,
    TableEta,
    clip_eta,
    eta_of,
)
from medclip_debias.losses.negatives import ContrastiveCore, CoreSettings


def debiased_per_anchor(
    anchors: Anchors,
    eta: Tensor,
    log_mean: Tensor | None = None,
    *,
    live_floor: bool = True,
) -> tuple[Tensor, Tensor]:
    """Loss of each anchor, in the form that neither overflows nor cancels to NaN.

    With ``pos = exp(s+)``, ``neg = sum_n W_n exp(s_n)`` over negatives of total weight
    ``N = sum_n W_n``, ``v`` the mean of ``exp(s_m)`` over the M positives of
    ``anchors.positives`` (``pos`` itself when that is None) and ``g2`` the scale::

        Ng   = max((neg - N eta v) / (1 - eta), N exp(-g2))
        loss = -log(pos / (pos + Ng))

    computed where the floor does not hold as ``m + log A - log(1 - eta)`` with
    ``l = log(neg / pos)``, ``p = log(v / pos)``, ``m = max(l, 0)`` held constant, and
    ``A = exp(l - m) - N eta exp(p - m) + (1 - eta) exp(-m)``: one logarithm of a strictly positive
    number (as ``log1p`` where m = 0, for losses near 0); where it holds, as
    ``log(1 + exp(log N - g2 - s+))``, which nothing else enters. The floor is the paper's
    (section 2.2, A.1; its figure 5 omits it) and is differentiated through ``g2``.

    Args:
        anchors: logits, positives, negatives of A anchors.
        eta: ``[A]`` in [0, `ETA_MAX`].
        log_mean: ``[A]`` another estimate of ``log v``; None computes it as above.
        live_floor: differentiate the floor through ``g2``.

    Returns:
        Losses ``[A]`` (0, with gradient 0, for an anchor without negatives) and a bool ``[A]``
        that says where the floor took over.
    """
    valid = anchors.negatives.any(dim=1)
    n = torch.where(valid, anchors.mass, torch.ones_like(anchors.positive))
    relative = anchors.logits - anchors.positive[:, None]
    weighted = relative
    if anchors.weights is not None:
        weighted = relative + torch.where(anchors.negatives, anchors.weights, 1.0).log()
    l = masked_logsumexp(weighted, anchors.negatives)  # noqa: E741
    p = torch.zeros_like(l)
    if anchors.positives is not None:
        count = anchors.positives.sum(dim=1).to(l.dtype)
        p = masked_logsumexp(relative, anchors.positives) - count.log()
    if log_mean is not None:
        p = log_mean - anchors.positive
    m = l.detach().clamp(min=0)
    keep = 1 - eta
    # log of N eta v / pos, relative to m; nothing where eta is 0, however large v is.
    tiny = torch.finfo(eta.dtype).tiny
    expected = torch.where(eta > 0, eta.clamp(min=tiny).log(), -torch.inf) + n.log() + p - m
    scale = anchors.scale if live_floor else anchors.scale.detach()
    floor = n.log() - scale - anchors.positive
    with torch.no_grad():
        rest = (l - m).exp() - expected.exp()
        # Without correction there is nothing to stop; equal numbers may differ by rounding.
        floored = ((rest < keep * (floor - m).exp()) & (eta > 0)) | (rest <= 0)
    # Where the floor holds the rest may overflow: it must not enter, not even times 0.
    corrected = (l - m).exp() - torch.where(floored, 0.0, expected).exp()
    corrected = torch.where(floored, 1.0, corrected)
    large = m + (corrected + keep * (-m).exp()).log() - torch.log1p(-eta)
    # Where m = 0 the same number, without losing the digits of a loss near 0.
    loss = torch.where(m > 0, large, torch.log1p(corrected / keep))
    loss = torch.where(floored, torch.logaddexp(floor, torch.zeros_like(floor)), loss)
    return torch.where(valid, loss, torch.zeros_like(loss)), floored & valid


class DebiasedSettings(CoreSettings):
    """Settings of `DebiasedContrastive`.

    ``positives: study`` corrects with every image and sentence of the anchor's own study in the
    batch (M > 1 ``v_m`` of equation 8) instead of the pair alone; none of them is a negative.
    """

    kind: Literal["debiased"] = "debiased"
    eta: EtaSettings = LanguageModelEta()
    positives: Literal["pair", "study"] = "pair"


class DebiasedContrastive(ContrastiveCore):
    """Debiased contrastive loss; ``eta`` constant, from a language model, or from a table.

    Args:
        settings: kind of eta and direction. Anchors are sentences and candidates the batch's
            images (``text_to_image``, the paper), or the other way round (``image_to_text``,
            with the eta of the paired sentence), or the mean of both (``symmetric``).

    Diagnostics: ``clamped`` share of anchors on the floor, ``mean_eta``, ``eta_clipped`` number
    of anchors whose eta was cut to 0 or 0.99, ``positive_similarity`` and ``negative_similarity``
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
        """What the policies, the kind of eta and the kind of positives read."""
        found = super().requires
        if self.settings.positives == "study":
            found |= {"sample_ids"}
        match self.settings.eta:
            case LanguageModelEta():
                found |= {"log_prob"}
            case TableEta():
                found |= {"eta"}
        return found

    def candidates(self, batch: ContrastiveBatch) -> list[Anchors]:
        """The anchors before any policy; the policies are not to spend on further positives."""
        sets = super().candidates(batch)
        if self.settings.positives == "pair":
            return sets
        return [with_study_positives(anchors, batch) for anchors in sets]

    def forward(self, batch: ContrastiveBatch) -> LossOutput:
        """Losses of the batch's anchors ``[T]`` (for ``symmetric``: the mean of the two)."""
        eta, clipped = clip_eta(eta_of(self.settings.eta, batch))
        sets, diagnostics = self.anchors(batch)
        losses, clamped = [], []
        for anchors in sets:
            loss, floored = debiased_per_anchor(anchors, eta)
            losses.append(loss)
            clamped.append(floored.to(loss.dtype))
        with torch.no_grad():
            diagnostics |= {
                "clamped": torch.stack(clamped).mean(),
                "mean_eta": eta.mean(),
                "eta_clipped": clipped,
            }
        return LossOutput(torch.stack(losses).mean(dim=0), diagnostics)


def with_study_positives(anchors: Anchors, batch: ContrastiveBatch) -> Anchors:
    """Make every candidate of the anchor's own study a positive ``v_m``, none a negative."""
    positives = same_study(anchors, batch, "positives: study")
    return replace(anchors, positives=positives, negatives=anchors.negatives & ~positives)


class InfoNCESettings(CoreSettings):
    """Settings of `InfoNCE`."""

    kind: Literal["infonce"] = "infonce"


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

    def __init__(self, settings: CoreSettings | None = None) -> None:
        given = settings or self.settings_class()
        assert isinstance(given, CoreSettings)
        super().__init__(
            DebiasedSettings(
                eta=ConstantEta(value=0.0), direction=given.direction, negatives=given.negatives
            )
        )
