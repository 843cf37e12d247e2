"""Debiased loss whose same-class mean is estimated from more than one pair.

With one positive (M = 1) the true class probability collapses: the noise of ``eta exp(s+)`` is
larger than what is left of the negatives, and the floor takes over. Here ``v``, the mean of
``exp(s)`` over images that agree with the sentence, is pooled over the batch or over time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.batch import Anchors, ContrastiveBatch, masked_logsumexp
from medclip_debias.losses.debiased import (
    ETA_MAX,
    DebiasedContrastive,
    DebiasedSettings,
    debiased_per_anchor,
    eta_of,
)
from medclip_debias.losses.objective import Losses, register
from medclip_debias.losses.pairs import between_texts
from medclip_debias.losses.samples import Groups, SampleTable


class PooledSettings(DebiasedSettings):
    """Settings of `PooledDebiased`.

    Attributes:
        eta: class probability, multiplied by ``shrink``.
        pool: ``pair`` the anchor's own pair (the paper's M = 1); ``text`` all images of the batch
            with a sentence whose frozen embedding has cosine ``threshold`` or more to the
            anchor's; ``running`` an average over time of the pairs of equal sentences, each
            relative to the mean over its batch's negatives, of which a new value takes ``gamma``.
            The average is held constant in the gradient; the mean that it is relative to is not,
            so that a constant added to all scores changes nothing.
        floor: ``live`` is differentiated through the scale, as the paper's; ``detached`` not.
    """

    kind: Literal["debiased_pooled"] = "debiased_pooled"  # type: ignore[assignment]
    direction: Literal["text_to_image"] = "text_to_image"
    shrink: float = Field(1.0, gt=0, le=1)
    pool: Literal["pair", "text", "running"] = "text"
    threshold: float = Field(0.95, ge=-1, le=1)
    gamma: float = Field(0.1, gt=0, le=1)
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

    Example:
        >>> from medclip_debias.losses.debiased import ConstantEta
        >>> batch = ContrastiveBatch(
        ...     torch.eye(3), torch.tensor(14.0), text_similarity=torch.eye(3)
        ... )
        >>> PooledDebiased(PooledSettings(eta=ConstantEta(value=0.1)))(batch).per_anchor.shape
        torch.Size([3])
    """

    settings: PooledSettings

    def __init__(self, settings: PooledSettings | None = None) -> None:
        super().__init__(settings)
        self.table = SampleTable({"log_ratio": 0.0, "visits": 0})

    @property
    def requires(self) -> frozenset[str]:
        """What eta, the pool and the policies read."""
        pools = {"pair": set[str](), "text": {"text_similarity"}, "running": {"text_ids"}}
        return super().requires | pools[self.settings.pool]

    def per_anchor(self, anchors: Anchors, batch: ContrastiveBatch) -> Losses:
        """Losses of the batch's sentences ``[T]``."""
        s = self.settings
        raw = s.shrink * eta_of(s.eta, batch)
        eta = raw.clamp(0, ETA_MAX)
        log_v, pooled = self._log_mean(anchors, batch)
        loss, floored = debiased_per_anchor(_with_mean(anchors, log_v, s.floor), eta)
        return loss, {
            "clamped": floored.to(loss.dtype),
            "mean_eta": eta,
            "eta_clipped": ((raw < 0) | (raw > ETA_MAX)).sum(),
            "pooled": pooled,
        }

    def _log_mean(self, anchors: Anchors, batch: ContrastiveBatch) -> tuple[Tensor, Tensor]:
        """``log v`` of each anchor ``[A]``, and the mean number of pairs behind it."""
        one = torch.ones((), device=anchors.logits.device)
        match self.settings.pool:
            case "text":
                like = between_texts(batch["text_similarity"], anchors, batch)
                members = (like >= self.settings.threshold) | anchors.is_positive
                count = members.sum(dim=1).to(anchors.logits.dtype)
                return masked_logsumexp(anchors.logits, members) - count.log(), count.mean()
            case "running":
                return self._running(anchors, batch)
            case _:
                return anchors.positive, one

    def _running(self, anchors: Anchors, batch: ContrastiveBatch) -> tuple[Tensor, Tensor]:
        """``log v`` as the running ``log (v / mean)`` of the sentence plus this batch's mean.

        An absolute ``log v``, held constant, would not follow scores that all rise alike: the
        estimate then subtracts too much or too little, and the loss pulls on the scores' level.
        """
        valid = anchors.negatives.any(dim=1)
        level = masked_logsumexp(anchors.weighted_logits(anchors.logits), anchors.negatives)
        level = level - torch.where(valid, anchors.mass, torch.ones_like(level)).log()
        ids = batch["text_ids"][anchors.rows].long()
        table = self.table
        table.reserve(ids)
        groups = Groups(ids, valid)  # an anchor without negatives has no mean to be relative to
        rows = groups.samples
        with torch.no_grad():
            new = groups.log_mean_exp(anchors.positive - level)
            old, gamma = table["log_ratio"][rows].double(), self.settings.gamma
            mixed = torch.logaddexp(
                old + torch.log1p(torch.tensor(-gamma, dtype=old.dtype)),
                new + torch.tensor(gamma, dtype=old.dtype).log(),
            )
            seen = table["visits"][rows] > 0
            value = torch.where(seen, mixed, new) if gamma < 1 else new
            if self.training:
                table["log_ratio"][rows] = value.to(table["log_ratio"].dtype)
                table["visits"][rows] += groups.count.to(table["visits"].dtype)
                table.steps += 1
        ratio = torch.zeros_like(level)
        ratio[valid] = value.to(level.dtype)[groups.place]
        return ratio + level, table["visits"][rows].float().sum() / max(1, len(rows))


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
