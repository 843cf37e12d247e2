"""Debiased contrastive loss with a class probability for each anchor: the main method.

Sample-specific debiasing (Wang et al. 2023), equations 7 and 8, figure 5; with a constant eta
it is debiased contrastive learning (Chuang et al. 2020), with eta 0 it is InfoNCE. eta is a
constant, stands in a table, or is that of a language model (section 2.4):
``eta_LM(x) = a p_LM(x)^k``, in log space only, because p underflows for any longer sentence.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.config import Schedule, Settings
from medclip_debias.losses.anchors import Anchors, LossBatch, masked_logsumexp, same_study
from medclip_debias.losses.objective import (
    ContrastiveLoss,
    ContrastiveSettings,
    Losses,
    register,
    strength,
)

ETA_MAX = 0.99
_STREAM = 21  # of the batch's random numbers


def debiased_per_anchor(anchors: Anchors, eta: Tensor) -> tuple[Tensor, Tensor]:
    """Loss of each anchor, in the form that neither overflows nor cancels to NaN.

    With ``pos = exp(s+)``, ``neg = sum_n W_n exp(s_n)``, ``N = sum_n W_n``, ``v`` the mean of
    ``exp(s_m)`` over ``anchors.positives`` (``pos`` where that is None) and ``g2`` the scale::

        Ng   = max((neg - N eta v) / (1 - eta), N exp(-g2))
        loss = -log(pos / (pos + Ng))

    computed where the floor does not hold as ``m + log A - log(1 - eta)`` with
    ``l = log(neg / pos)``, ``p = log(v / pos)``, ``m = max(l, 0)`` held constant, and
    ``A = exp(l - m) - N eta exp(p - m) + (1 - eta) exp(-m)``; where it holds, as
    ``log(1 + exp(log N - g2 - s+))``. The floor is the paper's (section 2.2, A.1; its figure 5
    omits it) and is differentiated through ``g2``.

    Args:
        anchors: logits, positives, negatives of A anchors.
        eta: ``[A]`` in [0, `ETA_MAX`].

    Returns:
        Losses ``[A]`` (0 without negatives), and a bool ``[A]``: where the floor took over.
    """
    valid = anchors.negatives.any(dim=1)
    n = torch.where(valid, anchors.mass, torch.ones_like(anchors.positive))
    relative = anchors.relative_logits
    l = masked_logsumexp(anchors.weighted_logits(relative), anchors.negatives)  # noqa: E741
    p = torch.zeros_like(l)
    if anchors.positives is not None:
        count = anchors.positives.sum(dim=1).to(l.dtype)
        p = masked_logsumexp(relative, anchors.positives) - count.log()
    m = l.detach().clamp(min=0)
    keep = 1 - eta
    # log of N eta v / pos, relative to m; nothing where eta is 0, however large v is.
    tiny = torch.finfo(eta.dtype).tiny
    expected = torch.where(eta > 0, eta.clamp(min=tiny).log(), -torch.inf) + n.log() + p - m
    floor = n.log() - anchors.scale - anchors.positive
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


class ConstantEta(Settings):
    """The same eta for every anchor (Chuang et al. 2020)."""

    kind: Literal["constant"] = "constant"
    value: float = Field(0.1, ge=0, lt=1)


class SentenceEta(Settings):
    """An eta that differs from sentence to sentence.

    ``control: shuffled`` deals the values out anew in each batch: the same dose, for no sentence in
    particular.
    """

    control: Literal["none", "shuffled"] = "none"


class LanguageModelEta(SentenceEta):
    """``log eta = log a + k log p(sentence)``; the paper's grid search gave a .2, k .35.

    ``language_model`` is the folder whose scores must be used; without it, the folder that the
    text encoder starts from.
    """

    kind: Literal["language_model"] = "language_model"
    a: float = Field(0.2, gt=0)
    k: float = Field(0.35, ge=0)
    language_model: Path | None = None


class TableEta(SentenceEta):
    """eta of each distinct sentence from a CSV or Parquet file with columns text, eta.

    ``factor`` multiplies it: training is stable only below a quarter to a half of the true
    probability (docs/theory.md).
    """

    kind: Literal["table"] = "table"
    path: Path | None = None
    factor: float = Field(1.0, gt=0, le=1)


Eta = ConstantEta | LanguageModelEta | TableEta


def eta_of(settings: Eta, batch: LossBatch) -> Tensor:
    """eta of every sentence of the batch, ``[T]``, before it is cut to `ETA_MAX`."""
    like = batch.similarity
    match settings:
        case ConstantEta():
            return like.new_full((len(batch.owners),), settings.value)
        case LanguageModelEta():
            eta = (math.log(settings.a) + settings.k * batch["log_prob"].to(like.dtype)).exp()
        case TableEta():
            eta = batch["eta"].to(like.dtype) * settings.factor
    if settings.control == "none":
        return eta
    order = torch.randperm(len(eta), generator=batch.generator(_STREAM))
    return eta[order.to(eta.device)]


class DebiasedSettings(ContrastiveSettings):
    """Settings of `DebiasedContrastive`.

    ``positives: study`` corrects with every image and sentence of the anchor's own study in the
    batch (M > 1 ``v_m`` of equation 8) instead of the pair alone; none of them is a negative.
    ``schedule`` multiplies eta by its strength. ``weigh_anchors`` multiplies each anchor's loss by
    ``1 - eta``; without it, sentences that are true of nearly everyone take nearly all the gradient
    at the start of training (docs/theory.md).
    """

    kind: Literal["debiased"] = "debiased"
    eta: Annotated[Eta, Field(discriminator="kind")] = LanguageModelEta()
    positives: Literal["pair", "study"] = "pair"
    schedule: Schedule | None = None
    weigh_anchors: bool = False


@register(
    "debiased",
    DebiasedSettings,
    rowwise=True,
    formula="-log pos / (pos + Ng), Ng = max((neg - N eta pos) / (1 - eta), N exp(-g2))",
    paper="Sample-specific debiasing (2023), eq. 7-8; Chuang et al. (2020)",
)
class DebiasedContrastive(ContrastiveLoss):
    """Debiased contrastive loss; ``eta`` constant, from a language model, or from a table.

    Anchors are sentences and candidates the batch's images (``text_to_image``, the paper), or the
    other way round (``image_to_text``, with the eta of the paired sentence), or the mean of both
    (``symmetric``).

    Diagnostics: ``clamped`` share of anchors on the floor, ``mean_eta``, ``eta_clipped`` number
    of sentences whose eta was cut to 0 or 0.99.

    Example:
        >>> from medclip_debias.losses import ContrastiveBatch
        >>> loss = DebiasedContrastive(DebiasedSettings(eta=ConstantEta(value=0.1)))
        >>> batch = ContrastiveBatch(torch.eye(3), torch.tensor(14.0))
        >>> loss(batch).per_anchor.shape
        torch.Size([3])
    """

    settings: DebiasedSettings

    def chosen_fields(self) -> set[str]:
        """What the kind of eta and the kind of positives read."""
        s, fields = self.settings, set()
        if s.positives == "study":
            fields.add("sample_ids")
        if not isinstance(s.eta, ConstantEta):
            fields.add("eta" if isinstance(s.eta, TableEta) else "log_prob")
            if s.eta.control != "none":
                fields.add("seed")
        return fields

    def candidates(self, batch: LossBatch) -> list[Anchors]:
        """The anchors before any policy; the policies are not to spend on further positives."""
        sets = super().candidates(batch)
        if self.settings.positives == "study":
            studies = [same_study(anchors, batch) for anchors in sets]
            sets = [
                replace(anchors, positives=study, negatives=anchors.negatives & ~study)
                for anchors, study in zip(sets, studies, strict=True)
            ]
        return sets

    def per_anchor(self, anchors: Anchors, batch: LossBatch) -> Losses:
        """See `debiased_per_anchor`."""
        s, raw = self.settings, eta_of(self.settings.eta, batch)
        clipped = ((raw < 0) | (raw > ETA_MAX)).sum()
        eta = (raw.clamp(0, ETA_MAX) * strength(s.schedule, batch))[anchors.rows]
        loss, floored = debiased_per_anchor(anchors, eta)
        figures = {"clamped": floored.to(loss.dtype), "mean_eta": eta, "eta_clipped": clipped}
        return loss * (1 - eta) if s.weigh_anchors else loss, figures
