"""Global vectors whose inner product follows the LSE+NL score.

The exact score of an image and a sentence is no inner product: it looks for the best of many
regions. But it is smooth in the sentence, so its values at some hundred *landmark* sentences tell
what it is elsewhere. An image's global vector is therefore its exact scores with the landmarks,
projected to the directions in which images differ most; a sentence's is the kernel ridge
regression from its likeness to the landmarks. This is the matrix factorisation of Yadav et al.
2022 (ANNCUR, "Efficient nearest neighbor search for cross-encoder models using matrix
factorization") with the regression in place of their anchor images, so that a query needs no
exact score at all.

With ``S`` the centred scores of a sample of images ``[images, M]`` and ``V`` its ``r`` leading
right singular vectors: image ``e = (s - mean) V``, sentence ``w = V^T (K + ridge I)^-1 k(y)``,
with ``K`` the likeness ``exp(b (cos - 1))`` between landmarks and ``k(y)`` that with ``y``. Then
``e . w`` approximates the score up to a constant of the sentence, which does not rank images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.errors import explained
from medclip_debias.files import check_guarded
from medclip_debias.models.features import ImageFeatures

Floats = NDArray[np.float32]
Regions = NDArray[np.float16]
Score = Callable[[ImageFeatures, Tensor], Tensor]
"""Features of B images and sentences ``[T, D]`` to scores ``[B, T]``: a model's own."""
Progress = Callable[[int, int], None]

# Chosen on the demo's model, where recall changes little over a factor of ten around them.
RIDGE = 0.1
# b: the likeness of two average landmarks is exp(-REACH).
REACH = 3.0


@dataclass(frozen=True)
class Landmarks:
    """What turns scores and sentences into global vectors."""

    sentences: Floats  # unit vectors of the landmarks [M, D]
    mean: Floats  # score of each landmark [M]
    directions: Floats  # V, [M, r]
    weights: Floats  # (K + ridge I)^-1 V, [M, r]
    sharpness: float  # b

    @classmethod
    def fit(cls, sentences: Floats, scores: Floats, rank: int) -> Landmarks:
        """Learn from the exact scores ``[images, M]`` of a sample of images.

        ``rank`` is ``r``; it is less where there are fewer landmarks or images.
        """
        vectors, exact = sentences.astype(np.float64), scores.astype(np.float64)
        mean = exact.mean(axis=0)
        _, _, right = np.linalg.svd(exact - mean, full_matrices=False)
        directions = right[:rank].T
        cosines = vectors @ vectors.T
        sharpness = REACH / max(float(1 - cosines.mean()), 1e-6)
        kernel = np.exp(sharpness * (cosines - 1))
        weights = np.linalg.solve(kernel + RIDGE * np.eye(len(kernel)), directions)
        single: list[Floats] = [
            array.astype(np.float32) for array in (sentences, mean, directions, weights)
        ]
        return cls(single[0], single[1], single[2], single[3], sharpness)

    def images(self, scores: Floats) -> Floats:
        """Global vectors ``[B, r]`` of images from their scores with the landmarks ``[B, M]``."""
        return np.ascontiguousarray((scores - self.mean) @ self.directions)

    def queries(self, sentences: Floats) -> Floats:
        """Global vectors ``[T, r]`` of sentences ``[T, D]``."""
        kernel = np.exp(self.sharpness * (sentences @ self.sentences.T - 1))
        return np.ascontiguousarray((kernel @ self.weights).astype(np.float32))

    def save(self, path: Path) -> None:
        """Write as safetensors."""
        from safetensors.numpy import save_file

        tensors = {name: np.ascontiguousarray(value) for name, value in vars(self).items()}
        save_file(tensors, path)
        path.chmod(path.parent.stat().st_mode & 0o666)  # safetensors makes it private

    @classmethod
    def load(cls, path: Path) -> Landmarks:
        """Read what `save` wrote."""
        from safetensors.numpy import load_file

        check_guarded(path, "run 'index' again", folder=path.parent)
        with explained(f"{path}: cannot be read as landmarks; run 'index' again", Exception):
            tensors = load_file(path)
            sharpness = float(tensors.pop("sharpness")[0])
            return cls(**tensors, sharpness=sharpness)


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


def blocks(regions: Regions) -> Iterator[tuple[slice, Regions]]:
    """The regions of all images, `BLOCK` images at a time, as arrays in memory.

    A memory map is mapped anew for each block, so that pages already read do not count as this
    process's memory until the end.
    """
    for start in range(0, len(regions), BLOCK):
        place = slice(start, min(start + BLOCK, len(regions)))
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
