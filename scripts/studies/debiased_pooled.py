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

from medclip_debias.losses.anchors import Anchors, LossBatch, masked_logsumexp
from medclip_debias.losses.debiased import DebiasedContrastive, DebiasedSettings
from medclip_debias.losses.objective import Losses, register
from medclip_debias.losses.pairs import between_texts


class PooledSettings(DebiasedSettings):
    """Settings of `PooledDebiased`.

    ``pool``: the anchor's own ``pair`` (the paper's M = 1), or (``text``) all images of the batch
    with a sentence whose frozen embedding has cosine ``threshold`` or more to the anchor's.
    ``floor``: ``live`` is differentiated through the scale, as the paper's; ``detached`` not.
    """

    kind: Literal["debiased_pooled"] = "debiased_pooled"  # type: ignore[assignment]
    direction: Literal["text_to_image"] = "text_to_image"
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
    """

    settings: PooledSettings

    @property
    def requires(self) -> frozenset[str]:
        pool = {"text_similarity"} if self.settings.pool == "text" else set[str]()
        return super().requires | pool

    def per_anchor(self, anchors: Anchors, batch: LossBatch) -> Losses:
        """Losses of the batch's sentences ``[T]``: log v is one more candidate, the positive."""
        log_v, last = anchors.positive, torch.zeros_like(anchors.negatives[:, :1])
        if self.settings.pool == "text":
            like = between_texts(batch["text_similarity"], anchors, batch)
            members = (like >= self.settings.threshold) | anchors.is_positive
            log_v = masked_logsumexp(anchors.logits, members) - members.sum(dim=1).to(log_v).log()
        none, weights = torch.zeros_like(anchors.negatives), anchors.weights
        pooled = replace(
            anchors,
            logits=torch.cat([anchors.logits, log_v[:, None]], dim=1),
            negatives=torch.cat([anchors.negatives, last], dim=1),
            positives=torch.cat([none, ~last], dim=1),
            weights=None if weights is None else torch.cat([weights, last.to(weights)], dim=1),
            scale=anchors.scale if self.settings.floor == "live" else anchors.scale.detach(),
        )
        return super().per_anchor(pooled, batch)
