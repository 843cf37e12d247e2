"""Keyword supervision: true negatives by what the sentences name, added to any objective.

Improved CLIP training on fine-grained tasks, definition 4.1: ``L = L_core + weight mean_i L_g,i``.
With ``l_i`` the keyword class of pair i, 0 for none::

    x_i = sum_{j: l_j != 0, l_j != l_i} exp(s_ij) / exp(s_ii),   L_g,i = g(x_i) where l_i != 0
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, LossBatch, masked_logsumexp
from medclip_debias.losses.clip import CLIPSettings
from medclip_debias.losses.objective import (
    LossOutput,
    LossSettings,
    NestedLoss,
    Objective,
    build_objective,
    register,
)


def keyword_per_anchor(
    anchors: Anchors, keywords: Tensor, g: str = "g1", denominator: str = "pair"
) -> Tensor:
    """``L_g`` ``[A]`` of image anchors, 0 without a keyword or without negatives.

    Computed as ``log(1 + e^l)`` or ``sigmoid(l)`` with ``l = log x``. ``same_class`` is the paper's
    ``L'``, over ``sum_{j: l_j = l_i} exp(s_ij)``.
    """
    mine, theirs = keywords[anchors.rows][:, None], keywords[None, :]
    other = anchors.negatives & (theirs != 0) & (theirs != mine)
    relative = anchors.relative_logits
    ratio = masked_logsumexp(relative, other)
    if denominator == "same_class":
        same = (anchors.negatives & (theirs == mine)) | anchors.is_positive
        ratio = ratio - masked_logsumexp(relative, same)
    value = torch.sigmoid(ratio) if g == "g2" else torch.logaddexp(ratio, torch.zeros_like(ratio))
    counts = (mine.squeeze(1) != 0) & other.any(dim=1)
    return torch.where(counts, value, torch.zeros_like(value))


class KeywordSettings(LossSettings):
    """Settings of `KeywordSupervision`.

    ``words``: a packaged list (``cardinal_numbers``, ``laterality``, ``severity``, ``findings``)
    or a YAML file. ``g`` is ``g1 = log(1 + x)`` or ``g2 = x / (1 + x)``.
    """

    kind: Literal["keyword"] = "keyword"
    core: NestedLoss = CLIPSettings()
    weight: float = Field(1.0, ge=0)
    g: Literal["g1", "g2"] = "g1"
    denominator: Literal["pair", "same_class"] = "pair"
    words: str | Path = "cardinal_numbers"


@register(
    "keyword",
    KeywordSettings,
    reads={"keywords"},
    rowwise=True,
    formula="core + weight * g(sum_{l_j != l_i} exp(s_ij) / exp(s_ii)), g1 = log(1 + x)",
    paper="Improved CLIP training on fine-grained tasks, definition 4.1",
)
class KeywordSupervision(Objective):
    """Another objective (the paper's is CLIP) plus ``weight`` times ``L_g``, images to sentences.

    Other sentences of an image's own study are neither positive nor negative.

    Example:
        >>> from medclip_debias.losses import ContrastiveBatch
        >>> keywords = torch.tensor([1, 2])
        >>> batch = ContrastiveBatch(torch.zeros(2, 2), torch.tensor(1.0), keywords=keywords)
        >>> loss = KeywordSupervision(KeywordSettings(weight=0.5))
        >>> loss(batch).per_anchor / torch.tensor(2.0).log()
        tensor([1.5000, 1.5000])
    """

    settings: KeywordSettings

    def __init__(self, settings: KeywordSettings | None = None) -> None:
        super().__init__(settings)
        self.core = build_objective(self.settings.core)

    def forward(self, batch: LossBatch) -> LossOutput:
        """Losses of the batch's pairs ``[T]``."""
        keywords, core = batch["keywords"], self.core(batch)
        anchors = batch.anchors("image_to_text")[0]
        if batch.study_of_image is not None:  # no sentence of another image of the study
            study = batch.study_of_image[batch.owners]
            foreign = study[anchors.rows][:, None] != study[None, :]
            anchors = replace(anchors, negatives=anchors.negatives & foreign)
        extra = keyword_per_anchor(anchors, keywords, self.settings.g, self.settings.denominator)
        diagnostics = core.diagnostics | {
            "keyword_loss": batch.mean(extra),
            "keyword_share": (keywords != 0).to(extra.dtype).mean(),
        }
        return LossOutput(core.per_anchor + self.settings.weight * extra, diagnostics)
