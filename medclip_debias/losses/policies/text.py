"""Policies by text: the more a negative's text is like the anchor's, the less it counts."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import SIDES, Anchors, LossBatch
from medclip_debias.losses.pairs import between_texts
from medclip_debias.losses.policies.fnc import largest
from medclip_debias.losses.policy import register


@register(
    "reweight_by_text",
    reads={"text_similarity"},
    rowwise=True,
    formula="W = N exp(-beta cos(text_j, text_n)) / sum_n exp(-beta cos)",
    paper="Sample-specific debiasing (2023), table 1; Robinson et al. (2021)",
)
def reweight_by_text(
    anchors: Anchors,
    batch: LossBatch,
    *,
    beta: Annotated[float, Field(ge=0, le=20)] = 1.0,
    keep_mass: bool = True,  # noqa: ARG001  `Policy.apply_to` rescales to the sum N
) -> Tensor:
    """``W`` proportional to ``exp(-beta cos)``; ``keep_mass`` is on: the weights sum to N."""
    cosines = batch["text_similarity"].to(anchors.logits.dtype)
    return (-beta * between_texts(cosines, anchors, batch)).exp()


@register(
    "resample_by_text",
    reads={"text_similarity", "seed"},
    formula="W = N / n on n = ceil(share N) negatives sampled by exp(-beta cos)",
    paper="Sample-specific debiasing (2023), table 1",
)
def resample_by_text(
    anchors: Anchors,
    batch: LossBatch,
    *,
    share: Annotated[float, Field(gt=0, le=1)] = 0.5,
    beta: Annotated[float, Field(ge=0, le=100)] = 1.0,
    keep_mass: bool = True,  # noqa: ARG001
) -> Tensor:
    """Sample ``ceil(share N)`` negatives without replacement, by probability ``exp(-beta cos)``.

    The largest of ``-beta cos + Gumbel noise`` (Efraimidis and Spirakis 2006), by the batch's seed.
    ``keep_mass`` is on: each of the n sampled weighs N / n.
    """
    generator = batch.generator(SIDES.index(anchors.side))
    noise = torch.rand(anchors.logits.shape, generator=generator, dtype=torch.float64)
    gumbel = -(-noise.clamp(min=1e-300).log()).log().to(anchors.logits.device)
    cosines = between_texts(batch["text_similarity"].double(), anchors, batch)
    total = anchors.negatives.sum(dim=1)
    # The small term: 0.2 x 5 must be 1, not the next integer above 1.0000000000000002.
    sampled = (share * total.double() - 1e-9).ceil().long()
    return largest(gumbel - beta * cosines, anchors.negatives, sampled)
