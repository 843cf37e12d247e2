"""CLIP: InfoNCE in both directions."""

from __future__ import annotations

from typing import ClassVar, Literal

from medclip_debias.losses.anchors import Direction
from medclip_debias.losses.core import CoreSettings
from medclip_debias.losses.objectives.debiased import DebiasedCore


class CLIPSettings(CoreSettings):
    """Settings of `CLIP`."""

    kind: Literal["clip"] = "clip"
    direction: Direction = "symmetric"


class CLIP(DebiasedCore[CLIPSettings]):
    """Symmetric InfoNCE (Radford et al. 2021): the mean of both cross-entropies.

    Example:
        >>> import torch
        >>> from medclip_debias.losses import ContrastiveBatch
        >>> images, sentences = torch.eye(4), torch.eye(4)
        >>> batch = ContrastiveBatch.from_embeddings(images, sentences, 14.0)
        >>> CLIP()(batch).loss.item() < 0.001
        True
    """

    whole_batch = None
    formula: ClassVar[str] = "1/2 (InfoNCE text to image + InfoNCE image to text)"
    paper: ClassVar[str] = "CLIP, Radford et al. (2021)"
