"""Similarities of some images of a set with some texts, outside of any protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from medclip_debias.models.finite import finite

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel


@torch.no_grad()
def row_scores(
    model: ImageTextModel,
    data: PreparedSet,
    rows: Sequence[int] | NDArray[np.integer],
    texts: Sequence[str],
    batch_size: int = 64,
    *,
    what: str = "validation",
) -> NDArray[np.float64]:
    """Similarities of the images in ``rows`` with texts: ``[len(rows), len(texts)]``."""
    sentences = model.encode_sentences(list(texts))
    parts = [np.zeros((0, len(texts)))]
    for start in range(0, len(rows), batch_size):
        pixels = torch.from_numpy(np.asarray(data.pixels[rows[start : start + batch_size]]))
        scores = model.score(model.encode_images(pixels), sentences)
        parts.append(finite(scores, what).astype(np.float64))
    return np.concatenate(parts)
