"""BioViL (Boecking et al. 2022): CLIP's loss, and a masked-language-model term.

::

    loss = 1/2 (InfoNCE text to image + InfoNCE image to text) + weight * L_MLM
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from medclip_debias.config import Settings
from medclip_debias.losses.anchors import Direction
from medclip_debias.losses.clip import InfoNCE
from medclip_debias.losses.objective import ContrastiveSettings, register


class MaskedLMSettings(Settings):
    """A masked-language-model loss, added with ``weight``; ``mask_share`` of tokens are masked."""

    weight: float = Field(1.0, ge=0)
    mask_share: float = Field(0.15, gt=0, lt=1)


class BioViLSettings(ContrastiveSettings):
    """Settings of `BioViL`; its global score is ``model.similarity.aggregator: global``."""

    kind: Literal["biovil"] = "biovil"
    direction: Direction = "symmetric"
    masked_lm: MaskedLMSettings = MaskedLMSettings()


@register(
    "biovil",
    BioViLSettings,
    rowwise=True,
    formula="1/2 (InfoNCE both directions) + weight * masked-LM loss",
    paper="BioViL, Boecking et al. (2022)",
)
class BioViL(InfoNCE):
    """Symmetric InfoNCE; the training loop adds the masked-language-model term of the text encoder.

    Example:
        >>> BioViL().masked_lm.mask_share
        0.15
    """
