"""Debiased loss whose same-class mean is estimated from more than one pair.

With one positive (M = 1) the true class probability collapses: the noise of ``eta exp(s+)`` is
larger than what is left of the negatives, and the floor takes over. Here ``v``, the mean of
``exp(s)`` over images that agree with the sentence, may be pooled over the batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, LossBatch, masked_logsumexp
from medclip_debias.losses.debiased import (
    ETA_MAX,
    DebiasedContrastive,
    DebiasedSettings,
    debiased_per_anchor,
    eta_of,
)
from medclip_debias.losses.objective import Losses, register
from medclip_debias.losses.pairs import between_texts


class PooledSettings(DebiasedSettings):
    """Settings of `PooledDebiased`.

    Attributes:
        eta: class probability, multiplied by ``shrink``.
        pool: ``pair`` the anchor's own pair (the paper's M = 1); ``text`` all images of the batch
            with a sentence whose frozen embedding has cosine ``threshold`` or more to the
            anchor's.
        floor: ``live`` is differentiated through the scale, as the paper's; ``detached`` not.
    """

    kind: Literal["debiased_pooled"] = "debiased_pooled"  # type: ignore[assignment]
    direction: Literal["text_to_image"] = "text_to_image"
    shrink: float = Field(1.0, gt=0, le=1)
    pool: Literal["pair", "text"] = "text"
    threshold: float = Field(0.95, ge=-1, le=1)
    floor: Literal["live", "detached"] = "live"


@register(
    "debiased_pooled",
    PooledSettings,
    formula="-log pos / (pos + Ng), Ng = max((neg - N eta v) / (1 - eta), N exp(-g2)), v a mean "
    "over pairs of like sentences",
    paper="this project (study 'estimator')",
)
class PooledDebiased(DebiasedContrastive):
    """The debiased loss with ``Ng = max((neg - N eta v) / (1 - eta), N exp(-g2))``, v pooled.

    Pooled images stay among the negatives: those are a sample of all images, which is what the
    estimate subtracts from.

    Diagnostics: ``clamped`` share of anchors on the floor, ``mean_eta``, ``eta_clipped`` number
    of anchors whose eta was cut to 0 or 0.99, ``pooled`` mean number of pairs behind ``v``, and
    those of the policies.
    """

    settings: PooledSettings

    @property
    def requires(self) -> frozenset[str]:
        pool = {"text_similarity"} if self.settings.pool == "text" else set[str]()
        return super().requires | pool

    def per_anchor(self, anchors: Anchors, batch: LossBatch) -> Losses:
        """Losses of the batch's sentences ``[T]``."""
        s = self.settings
        raw = s.shrink * eta_of(s.eta, batch)
        eta = raw.clamp(0, ETA_MAX)
        log_v, pooled = anchors.positive, torch.ones((), device=anchors.logits.device)
        if s.pool == "text":
            like = between_texts(batch["text_similarity"], anchors, batch)
            members = (like >= s.threshold) | anchors.is_positive
            count = members.sum(dim=1).to(anchors.logits.dtype)
            log_v = masked_logsumexp(anchors.logits, members) - count.log()
            pooled = count.mean()
        loss, floored = debiased_per_anchor(_with_mean(anchors, log_v, s.floor), eta)
        return loss, {
            "clamped": floored.to(loss.dtype),
            "mean_eta": eta,
            "eta_clipped": ((raw < 0) | (raw > ETA_MAX)).sum(),
            "pooled": pooled,
        }


def _with_mean(anchors: Anchors, log_v: Tensor, floor: str) -> Anchors:
    """The anchors and a candidate of the logit ``log v`` as the only positive of equation 8."""
    last = torch.zeros_like(anchors.negatives[:, :1])
    weights = anchors.weights
    return replace(
        anchors,
        logits=torch.cat([anchors.logits, log_v[:, None]], dim=1),
        negatives=torch.cat([anchors.negatives, last], dim=1),
        positives=torch.cat([torch.zeros_like(anchors.negatives), ~last], dim=1),
        weights=None if weights is None else torch.cat([weights, last.to(weights.dtype)], dim=1),
        scale=anchors.scale if floor == "live" else anchors.scale.detach(),
    )
