"""Policies by text: the more a negative's text is like the anchor's, the less it counts."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.batch import SIDES, Anchors, ContrastiveBatch
from medclip_debias.losses.pairs import between_texts
from medclip_debias.losses.policies.fnc import largest
from medclip_debias.losses.policy import PolicySettings, register


class ReweightByTextSettings(PolicySettings):
    """Settings of `reweight_by_text`; ``keep_mass`` is on: the weights sum to N."""

    kind: Literal["reweight_by_text"] = "reweight_by_text"
    beta: float = Field(1.0, ge=0, le=20)
    keep_mass: bool = True


@register(
    "reweight_by_text",
    ReweightByTextSettings,
    reads={"text_similarity"},
    rowwise=True,
    formula="W = N exp(-beta cos(text_j, text_n)) / sum_n exp(-beta cos)",
    paper="Sample-specific debiasing (2023), table 1; Robinson et al. (2021)",
)
def reweight_by_text(
    anchors: Anchors, batch: ContrastiveBatch, settings: ReweightByTextSettings
) -> Tensor:
    """``W`` proportional to ``exp(-beta cos)``; `Policy.apply_to` rescales it to the sum N."""
    cosines = batch["text_similarity"].to(anchors.logits.dtype)
    return (-settings.beta * between_texts(cosines, anchors, batch)).exp()


class ResampleByTextSettings(PolicySettings):
    """Settings of `resample_by_text`; ``keep_mass`` is on: each of the n sampled weighs N / n."""

    kind: Literal["resample_by_text"] = "resample_by_text"
    share: float = Field(0.5, gt=0, le=1)
    beta: float = Field(1.0, ge=0, le=100)
    keep_mass: bool = True


@register(
    "resample_by_text",
    ResampleByTextSettings,
    reads={"text_similarity", "seed"},
    formula="W = N / n on n = ceil(share N) negatives sampled by exp(-beta cos)",
    paper="Sample-specific debiasing (2023), table 1",
)
def resample_by_text(
    anchors: Anchors, batch: ContrastiveBatch, settings: ResampleByTextSettings
) -> Tensor:
    """Sample ``ceil(share N)`` negatives without replacement, by probability ``exp(-beta cos)``.

    The largest of ``-beta cos + Gumbel noise`` (Efraimidis and Spirakis 2006), by the batch's seed.
    """
    generator = batch.generator(SIDES.index(anchors.side))
    noise = torch.rand(anchors.logits.shape, generator=generator, dtype=torch.float64)
    gumbel = -(-noise.clamp(min=1e-300).log()).log().to(anchors.logits.device)
    cosines = between_texts(batch["text_similarity"].double(), anchors, batch)
    total = anchors.negatives.sum(dim=1)
    # The small term: 0.2 x 5 must be 1, not the next integer above 1.0000000000000002.
    sampled = (settings.share * total.double() - 1e-9).ceil().long()
    return largest(gumbel - settings.beta * cosines, anchors.negatives, sampled)
