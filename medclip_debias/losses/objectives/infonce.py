"""InfoNCE: the debiased loss without a correction."""

from __future__ import annotations

from typing import ClassVar, Literal

from medclip_debias.losses.core import CoreSettings
from medclip_debias.losses.objectives.debiased import DebiasedCore


class InfoNCESettings(CoreSettings):
    """Settings of `InfoNCE`."""

    kind: Literal["infonce"] = "infonce"


class InfoNCE(DebiasedCore[InfoNCESettings]):
    """InfoNCE: the debiased loss with eta 0, where its floor can never be reached.

    Example:
        >>> import torch
        >>> from medclip_debias.losses import ContrastiveBatch
        >>> InfoNCE()(ContrastiveBatch(torch.eye(3), torch.tensor(14.0))).loss.item() < 0.01
        True
    """

    whole_batch = None
    formula: ClassVar[str] = "-log pos / (pos + neg)"
    paper: ClassVar[str] = "van den Oord et al. (2018); sample-specific debiasing, eq. 3"
