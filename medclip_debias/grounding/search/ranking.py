"""Exact scores of images from their stored regions, a block at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.models.features import ImageFeatures

Floats = NDArray[np.float32]
Regions = NDArray[np.float16]
Score = Callable[[ImageFeatures, Tensor], Tensor]
"""Features of B images and sentences ``[T, D]`` to scores ``[B, T]``: a model's own."""
Progress = Callable[[int, int], None]

BLOCK = 128


def sentence_scores(score: Score, regions: Regions, sentences: Tensor) -> Floats:
    """Scores ``[B, T]`` of stored vectors ``[B, N, D]``, in float32, with sentences ``[T, D]``."""
    with torch.inference_mode():
        wide = torch.from_numpy(regions).to(sentences.device).float()
        scores: Floats = score(ImageFeatures.of_stored(wide), sentences).float().cpu().numpy()
    return scores


def image_scores(query: Tensor, regions: Regions) -> Floats:
    """Likeness of one image ``[N, D]`` to others ``[B, N, D]``: ``[B]`` in [-1, 1].

    The mean, over the regions of the one, of the cosine with the best region of the other; both
    ways, averaged, so that it is symmetric and 1 for the image itself.
    """
    with torch.inference_mode():
        wide = torch.from_numpy(regions).to(query.device).float()
        cosines = wide @ query.T
        both = cosines.amax(dim=1).mean(dim=1) + cosines.amax(dim=2).mean(dim=1)
        likeness: Floats = (both / 2).cpu().numpy()
    return likeness


def mean_direction(regions: Regions | Floats) -> Floats:
    """Unit vector along the mean of each image's regions: ``[B, N, D]`` to ``[B, D]``."""
    mean = np.asarray(regions, dtype=np.float32).mean(axis=1)
    length = np.linalg.norm(mean, axis=1, keepdims=True)
    return np.asarray(mean / np.maximum(length, 1e-12), dtype=np.float32)


def blocks(regions: Regions, size: int = BLOCK) -> Iterator[tuple[slice, Regions]]:
    """The regions of all images, ``size`` images at a time, as arrays in memory.

    A memory map is mapped anew for each block, so that pages already read do not count as this
    process's memory until the end.
    """
    for start in range(0, len(regions), size):
        place = slice(start, min(start + size, len(regions)))
        if isinstance(regions, np.memmap) and regions.filename is not None:
            offset = regions.offset + start * regions[0].nbytes
            shape = (place.stop - start, *regions.shape[1:])
            yield place, np.array(np.memmap(regions.filename, np.float16, "r", offset, shape))
        else:
            yield place, np.array(regions[place])


def recall_at(exact: Floats, candidates: NDArray[np.integer], k: int) -> float:
    """Share of the ``k`` best images, by exact scores ``[n]``, that are among the candidates.

    An image whose score equals that of the k-th best counts as one of the best; of fewer than
    ``k`` images all are asked for.
    """
    k = min(k, len(exact))
    limit = np.partition(exact, -k)[-k]
    return min(int((exact[candidates] >= limit).sum()), k) / k
