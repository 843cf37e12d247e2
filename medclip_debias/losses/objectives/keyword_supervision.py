"""Keyword supervision: true negatives by what the sentences name, added to any objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from medclip_debias.losses.anchors import Anchors, masked_logsumexp
from medclip_debias.losses.batch import ContrastiveBatch
from medclip_debias.losses.objective import (
    AroundCore,
    LossOutput,
    LossSettings,
    NestedLoss,
    build_objective,
)
from medclip_debias.losses.objectives.clip import CLIPSettings


class KeywordSettings(LossSettings):
    """Settings of `KeywordSupervision`.

    ``words`` names a list that comes with the package (``cardinal_numbers``, ``laterality``,
    ``severity``, ``findings``) or a YAML file. ``g`` is ``g1 = log(1 + x)`` or
    ``g2 = x / (1 + x)``. ``denominator: same_class`` is the paper's variant ``L'``.
    """

    kind: Literal["keyword"] = "keyword"
    core: NestedLoss = CLIPSettings()
    weight: float = Field(1.0, ge=0)
    g: Literal["g1", "g2"] = "g1"
    denominator: Literal["pair", "same_class"] = "pair"
    words: str | Path = "cardinal_numbers"


def keyword_per_anchor(
    anchors: Anchors, keywords: Tensor, g: str = "g1", denominator: str = "pair"
) -> Tensor:
    """``L_g`` of each image anchor (definition 4.1 of the fine-grained objective).

    With ``l_i`` the keyword class of pair i, 0 for none::

        x_i = sum_{j: l_j != 0, l_j != l_i} exp(s_ij) / exp(s_ii),   L_g = g(x_i) where l_i != 0

    and in the variant ``L'`` the denominator ``sum_{j: l_j = l_i} exp(s_ij)``. Computed as
    ``g1 = log(1 + e^l)`` and ``g2 = sigmoid(l)`` of ``l = log x``. Other sentences of an image's
    own study are neither: what they name is in the image too.

    Args:
        anchors: of the images.
        keywords: ``[T]`` classes.
        g: ``g1`` or ``g2``.
        denominator: ``pair`` or ``same_class``.

    Returns:
        ``[A]``; 0 with gradient 0 without a keyword or without negatives.
    """
    mine, theirs = keywords[anchors.rows][:, None], keywords[anchors.columns][None, :]
    other = anchors.negatives & (theirs != 0) & (theirs != mine)
    relative = anchors.relative_logits
    ratio = masked_logsumexp(relative, other)
    if denominator == "same_class":
        same = (anchors.negatives & (theirs == mine)) | anchors.is_own
        ratio = ratio - masked_logsumexp(relative, same)
    value = torch.sigmoid(ratio) if g == "g2" else torch.logaddexp(ratio, torch.zeros_like(ratio))
    counts = (mine.squeeze(1) != 0) & other.any(dim=1)
    return torch.where(counts, value, torch.zeros_like(value))


class KeywordSupervision(AroundCore[KeywordSettings]):
    """Another objective plus ``weight`` times ``L_g``, from images to sentences.

    ``L = L_core + weight * (1/B) sum_i L_g,i`` (`keyword_per_anchor`); the paper's core is CLIP.

    Example:
        >>> batch = ContrastiveBatch(
        ...     torch.zeros(2, 2), torch.tensor(1.0), keywords=torch.tensor([1, 2])
        ... )
        >>> loss = KeywordSupervision(KeywordSettings(weight=0.5))
        >>> loss(batch).per_anchor / torch.tensor(2.0).log()
        tensor([1.5000, 1.5000])
    """

    whole_batch = None
    formula: ClassVar[str] = (
        "core + weight * g(sum_{l_j != l_i} exp(s_ij) / exp(s_ii)), g1 = log(1 + x)"
    )
    paper: ClassVar[str] = "Improved CLIP training on fine-grained tasks, definition 4.1"
    examples: ClassVar[tuple[Mapping[str, Any], ...]] = (
        {},
        {
            "core": {"kind": "debiased"},
            "g": "g2",
            "denominator": "same_class",
            "weight": 2.0,
        },
    )

    def __init__(self, settings: KeywordSettings | None = None) -> None:
        super().__init__(settings)
        self.core = build_objective(self.settings.core)

    @property
    def requires(self) -> frozenset[str]:
        """What the core reads, and ``keywords``."""
        return self.core.requires | {"keywords"}

    def forward(self, batch: ContrastiveBatch) -> LossOutput:
        """Losses of the batch's pairs ``[T]``."""
        keywords = batch.needed("keywords", self.kind)
        core = self.core(batch)
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
