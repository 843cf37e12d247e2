"""CLIP: InfoNCE in both directions; and BioViL's, which adds masked language modelling."""

from __future__ import annotations

from typing import ClassVar, Literal

from medclip_debias.losses.base import Direction, LossSettings, MaskedLMSettings
from medclip_debias.losses.debiased import InfoNCE
from medclip_debias.losses.negatives import CoreSettings


class CLIPSettings(CoreSettings):
    """Settings of `CLIP`."""

    kind: Literal["clip"] = "clip"
    direction: Direction = "symmetric"


class CLIP(InfoNCE):
    """Symmetric InfoNCE (Radford et al. 2021): the mean of both cross-entropies.

    Example:
        >>> import torch
        >>> from medclip_debias.losses import ContrastiveBatch
        >>> images, sentences = torch.eye(4), torch.eye(4)
        >>> batch = ContrastiveBatch.from_embeddings(images, sentences, 14.0)
        >>> CLIP()(batch).loss.item() < 0.001
        True
    """

    kind: ClassVar[str] = "clip"
    settings_class: ClassVar[type[LossSettings]] = CLIPSettings
    formula: ClassVar[str] = "1/2 (InfoNCE text to image + InfoNCE image to text)"
    paper: ClassVar[str] = "CLIP, Radford et al. (2021)"


class BioViLSettings(CoreSettings):
    """Settings of `BioViL`; its global score is ``model.similarity.aggregator: global``."""

    kind: Literal["biovil"] = "biovil"
    direction: Direction = "symmetric"
    masked_lm: MaskedLMSettings = MaskedLMSettings()


class BioViL(InfoNCE):
    """Symmetric InfoNCE plus a masked-language-model term (Boecking et al. 2022).

    ``loss = 1/2 (L_text_to_image + L_image_to_text) + weight * L_MLM``. This module gives the
    first part; the second needs the text encoder, so the training loop adds it, as
    ``masked_lm`` says.

    Example:
        >>> BioViL().masked_lm.mask_share
        0.15
    """

    kind: ClassVar[str] = "biovil"
    settings_class: ClassVar[type[LossSettings]] = BioViLSettings
    formula: ClassVar[str] = "1/2 (InfoNCE both directions) + weight * masked-LM loss"
    paper: ClassVar[str] = "BioViL, Boecking et al. (2022)"

    def __init__(self, settings: BioViLSettings | None = None) -> None:
        super().__init__(settings or BioViLSettings())
        self._masked_lm = (settings or BioViLSettings()).masked_lm

    @property
    def masked_lm(self) -> MaskedLMSettings:
        """Weight and share of masked tokens."""
        return self._masked_lm
