"""Images and sentences encoded: once for all protocols, or some images outside of any."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from medclip_debias.grounding.sentences import cut_sentences
from medclip_debias.models.finite import finite

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

Progress = Callable[[int, int], None]


class Seeing(Protocol):
    """What `encode` shows sentences and images to: a protocol of an evaluation, a choice."""

    rows: frozenset[int]
    texts: list[str]

    def begin(self, model: ImageTextModel, vectors: Tensor) -> None: ...

    def see(self, rows: Sequence[int], features: ImageFeatures) -> None: ...


class Vectors(Protocol):
    """Where the vectors of a set's images and of sentences come from: a network, or a cache."""

    def sentences(self, texts: Sequence[str]) -> Tensor:
        """Unit vectors ``[len(texts), D]``."""
        ...

    def images(self, rows: Sequence[int]) -> ImageFeatures:
        """Features of the images in these rows of the set."""
        ...


@dataclass(frozen=True)
class Network:
    """Vectors as the model's own encoders compute them."""

    model: ImageTextModel
    prepared: PreparedSet

    def sentences(self, texts: Sequence[str]) -> Tensor:
        """See `Vectors.sentences`."""
        return self.model.encode_sentences(texts)

    def images(self, rows: Sequence[int]) -> ImageFeatures:
        """See `Vectors.images`."""
        pixels = np.asarray(self.prepared.pixels[list(rows)])
        return self.model.encode_images(torch.from_numpy(pixels))


def encode(
    model: ImageTextModel,
    vectors: Vectors,
    protocols: Sequence[Seeing],
    *,
    batch_size: int,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Show every protocol the sentences and images that it asked for.

    Returns:
        How many ``images`` and ``sentences`` these are, and ``cut_sentences``, which have more
        tokens than the model reads.
    """
    texts = list(dict.fromkeys(text for protocol in protocols for text in protocol.texts))
    place = {text: number for number, text in enumerate(texts)}
    rows = sorted(set().union(*(protocol.rows for protocol in protocols)))
    with torch.inference_mode():
        sentences = vectors.sentences(texts)
        for protocol in protocols:
            protocol.begin(model, sentences[[place[text] for text in protocol.texts]])
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            features = vectors.images(batch)
            for protocol in protocols:
                places = [place for place, row in enumerate(batch) if row in protocol.rows]
                if places:
                    protocol.see([batch[place] for place in places], features[places])
            if progress:
                progress(start + len(batch), len(rows))
    cut = len(cut_sentences(model, texts)) if texts else 0
    return {"images": len(rows), "sentences": len(texts), "cut_sentences": cut}


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
    network, listed = Network(model, data), [int(row) for row in rows]
    sentences, parts = network.sentences(list(texts)), [np.zeros((0, len(texts)))]
    for start in range(0, len(listed), batch_size):
        scores = model.score(network.images(listed[start : start + batch_size]), sentences)
        parts.append(finite(scores, what).astype(np.float64))
    return np.concatenate(parts)
