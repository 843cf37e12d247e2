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

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from medclip_debias.errors import explained
from medclip_debias.files import check_guarded

Array = NDArray[np.float32]

# Chosen on the demo's model, where recall changes little over a factor of ten around them.
RIDGE = 0.1
# b: the likeness of two average landmarks is exp(-REACH).
REACH = 3.0


@dataclass(frozen=True)
class Landmarks:
    """What turns scores and sentences into global vectors."""

    sentences: Array  # unit vectors of the landmarks [M, D]
    mean: Array  # score of each landmark [M]
    directions: Array  # V, [M, r]
    weights: Array  # (K + ridge I)^-1 V, [M, r]
    sharpness: float  # b

    @classmethod
    def fit(cls, sentences: Array, scores: Array, rank: int) -> Landmarks:
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
        single: list[Array] = [
            array.astype(np.float32) for array in (sentences, mean, directions, weights)
        ]
        return cls(single[0], single[1], single[2], single[3], sharpness)

    def images(self, scores: Array) -> Array:
        """Global vectors ``[B, r]`` of images from their scores with the landmarks ``[B, M]``."""
        return np.ascontiguousarray((scores - self.mean) @ self.directions)

    def queries(self, sentences: Array) -> Array:
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
