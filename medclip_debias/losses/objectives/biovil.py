"""BioViL: CLIP's loss, and a masked-language-model term."""

from __future__ import annotations

from typing import ClassVar, Literal

from medclip_debias.losses.anchors import Direction
from medclip_debias.losses.core import CoreSettings
from medclip_debias.losses.objective import MaskedLMSettings
from medclip_debias.losses.objectives.debiased import DebiasedCore


class BioViLSettings(CoreSettings):
    """Settings of `BioViL`; its global score is ``model.similarity.aggregator: global``."""

    kind: Literal["biovil"] = "biovil"
    direction: Direction = "symmetric"
    masked_lm: MaskedLMSettings = MaskedLMSettings()


class BioViL(DebiasedCore[BioViLSettings]):
    """Symmetric InfoNCE plus a masked-language-model term (Boecking et al. 2022).

    ``loss = 1/2 (L_text_to_image + L_image_to_text) + weight * L_MLM``. This module gives the
    first part; the second needs the text encoder, so the training loop adds it, as
    ``masked_lm`` says.

    Example:
        >>> BioViL().masked_lm.mask_share
        0.15
    """

    whole_batch = None
    formula: ClassVar[str] = "1/2 (InfoNCE both directions) + weight * masked-LM loss"
    paper: ClassVar[str] = "BioViL, Boecking et al. (2022)"

    @property
    def masked_lm(self) -> MaskedLMSettings:
        """Weight and share of masked tokens."""
        return self.settings.masked_lm
