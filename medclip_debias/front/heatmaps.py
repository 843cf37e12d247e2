"""Maps of sentences over one radiograph, at its original pixels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from medclip_debias.models.interface import MapKind


@dataclass(frozen=True, eq=False)
class Heatmaps:
    """Where sentences are seen on one radiograph.

    Attributes:
        values: float32 ``[T, H, W]``, at the pixels of the original; NaN where the model saw
            nothing. `kind` says what they are.
        sentences: the T sentences.
        scores: float32 ``[T]``, the whole image's score of each sentence, in [-1, 1].
        kind: ``cosine`` of the region with the sentence, in [-1, 1]; ``attention``, shares in
            [0, 1]; or the method, ``gradcam`` (0 or more) or ``occlusion`` (how far the score
            falls).
        limits: lowest and highest value of all T maps; with these colour limits maps can be
            compared. The map of an absent finding has a brightest place too, so look at it beside
            that of the opposite sentence, and at the scores.
        image: uint8 ``[H, W]``, the radiograph in the grey levels that the model's images have.
    """

    values: NDArray[np.float32]
    sentences: tuple[str, ...]
    scores: NDArray[np.float32]
    kind: MapKind
    limits: tuple[float, float]
    image: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.sentences)

    def __getitem__(self, sentence: str | int) -> NDArray[np.float32]:
        """The map ``[H, W]`` of a sentence, by its words or number.

        Raises:
            KeyError: it was not asked for.
        """
        if isinstance(sentence, int):
            return self.values[sentence]
        if sentence.strip() not in self.sentences:
            raise KeyError("there is no map of this sentence; see `sentences`")
        return self.values[self.sentences.index(sentence.strip())]
