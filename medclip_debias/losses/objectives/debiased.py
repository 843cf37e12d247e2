"""Debiased contrastive loss with a class probability for each anchor: the main method.

Sample-specific debiasing (Wang et al. 2023), equations 7 and 8, figure 5; with a constant eta
it is debiased contrastive learning (Chuang et al. 2020), with eta 0 it is InfoNCE.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, masked_logsumexp, same_study
from medclip_debias.losses.annealing import Schedule
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.core import ContrastiveCore, CoreSettings
from medclip_debias.losses.eta import (
    ConstantEta,
    EtaSettings,
    LanguageModelEta,
    TableEta,
    clip_eta,
    eta_of,
    fields_of,
)
from medclip_debias.losses.objective import LossOutput


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
    relative = anchors.relative_logits
    l = masked_logsumexp(anchors.weighted_logits(relative), anchors.negatives)  # noqa: E741
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


D = TypeVar("D", bound=CoreSettings)


class DebiasedCore(ContrastiveCore[D]):
    """The debiased loss of `debiased_per_anchor`; with the ``eta`` 0 of this base, InfoNCE.

    Diagnostics: ``clamped`` share of anchors on the floor, ``mean_eta``, ``eta_clipped`` number
    of anchors whose eta was cut to 0 or 0.99, ``positive_similarity`` and ``negative_similarity``
    (cosine scale).

    Attributes:
        eta: where the class probability of each anchor comes from.
        positives: whose candidates are the ``v_m``: see `DebiasedSettings`.
        schedule: of the correction, likewise.
        weigh_anchors: likewise.
    """

    eta: ConstantEta | LanguageModelEta | TableEta = ConstantEta(value=0.0)
    positives: Literal["pair", "study"] = "pair"
    schedule: Schedule | None = None
    weigh_anchors: bool = False

    @property
    def requires(self) -> frozenset[str]:
        """What the policies, the kind of eta and the kind of positives read."""
        found = super().requires
        if self.positives == "study":
            found |= {"sample_ids"}
        if self.schedule is not None:
            found |= {"done"}
        return found | fields_of(self.eta)

    def candidates(self, batch: ContrastiveBatch) -> list[Anchors]:
        """The anchors before any policy; the policies are not to spend on further positives."""
        sets = super().candidates(batch)
        if self.positives == "pair":
            return sets
        return [with_study_positives(anchors, batch) for anchors in sets]

    def over(
        self, sets: list[Anchors], diagnostics: dict[str, Tensor], batch: ContrastiveBatch
    ) -> LossOutput:
        """Losses of the batch's anchors ``[T]`` (for ``symmetric``: the mean of the two)."""
        eta, clipped = clip_eta(eta_of(self.eta, batch))
        if self.schedule is not None:
            eta = eta * self.schedule.strength(batch.needed("done", f"{self.kind}: schedule"))
        eta = eta[sets[0].rows]
        losses, clamped = [], []
        for anchors in sets:
            loss, floored = debiased_per_anchor(anchors, eta)
            losses.append(loss * (1 - eta) if self.weigh_anchors else loss)
            clamped.append(floored.to(loss.dtype))
        with torch.no_grad():
            diagnostics |= {
                "clamped": batch.mean(torch.stack(clamped)),
                "mean_eta": batch.mean(eta),
                "eta_clipped": clipped,
            }
        return LossOutput(torch.stack(losses).mean(dim=0), diagnostics)


def with_study_positives(anchors: Anchors, batch: ContrastiveBatch) -> Anchors:
    """Make every candidate of the anchor's own study a positive ``v_m``, none a negative."""
    positives = same_study(anchors, batch, "positives: study")
    return replace(anchors, positives=positives, negatives=anchors.negatives & ~positives)


class DebiasedSettings(CoreSettings):
    """Settings of `DebiasedContrastive`.

    ``positives: study`` corrects with every image and sentence of the anchor's own study in the
    batch (M > 1 ``v_m`` of equation 8) instead of the pair alone; none of them is a negative.
    ``schedule`` multiplies eta by its strength. ``weigh_anchors`` multiplies each anchor's loss by
    ``1 - eta``: at the start of training the corrected loss pulls on an anchor with 1 / (1 - eta),
    so that what is true of nearly everyone takes nearly all the gradient (docs/theory.md).
    """

    kind: Literal["debiased"] = "debiased"
    eta: EtaSettings = LanguageModelEta()
    positives: Literal["pair", "study"] = "pair"
    schedule: Schedule | None = None
    weigh_anchors: bool = False


class DebiasedContrastive(DebiasedCore[DebiasedSettings]):
    """Debiased contrastive loss; ``eta`` constant, from a language model, or from a table.

    Args:
        settings: kind of eta and direction. Anchors are sentences and candidates the batch's
            images (``text_to_image``, the paper), or the other way round (``image_to_text``,
            with the eta of the paired sentence), or the mean of both (``symmetric``).

    Diagnostics: those of `DebiasedCore`.

    Example:
        >>> loss = DebiasedContrastive(DebiasedSettings(eta=ConstantEta(value=0.1)))
        >>> batch = ContrastiveBatch(torch.eye(3), torch.tensor(14.0))
        >>> loss(batch).per_anchor.shape
        torch.Size([3])
    """

    whole_batch = None
    formula: ClassVar[str] = (
        "-log pos / (pos + Ng), Ng = max((neg - N eta pos) / (1 - eta), N exp(-g2))"
    )
    paper: ClassVar[str] = "Sample-specific debiasing (2023), eq. 7-8; Chuang et al. (2020)"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {"eta": {"kind": "table"}, "direction": "symmetric"},
        {"eta": {"kind": "table"}, "direction": "symmetric", "positives": "study"},
        {"schedule": {"end": 0.8, "shape": "linear"}, "weigh_anchors": True},
        {"eta": {"kind": "table", "control": "shuffled"}},
    )

    def __init__(self, settings: DebiasedSettings | None = None) -> None:
        super().__init__(settings)
        self.eta, self.positives = self.settings.eta, self.settings.positives
        self.schedule, self.weigh_anchors = self.settings.schedule, self.settings.weigh_anchors
