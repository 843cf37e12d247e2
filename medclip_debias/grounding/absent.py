"""How high regions score for findings that an image does not show: where colour begins.

A map has a brightest place whether or not its finding is there. Stretched to its own range, every
map is bright somewhere, and one of "No pneumothorax." all over. What a score must exceed to be
worth a colour is taken from the image and the model alone: from the model's own prompts about
findings that the model itself holds to be absent from this image.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from medclip_debias.data.prompts import sets_of
from medclip_debias.models.finite import finite

if TYPE_CHECKING:
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

PERCENTILE = 95.0


@dataclass(frozen=True)
class AbsentScores:
    """Region scores of an image for findings that it does not show."""

    reference: float
    middle: float
    classes: tuple[str, ...]

    def limits(self, highest: float) -> tuple[float, float]:
        """Scores at the ends of the colours for maps whose highest score is ``highest``.

        From the median, so that the reference already has a colour that is seen, to ``highest``,
        but at least as far beyond the reference as the median lies below it (1, the highest
        cosine, at most): what barely exceeds the reference does not get the brightest colour.
        """
        span = max(self.reference - self.middle, 1e-6)
        low = self.reference - span
        return low, max(highest, min(self.reference + span, 1.0), low + 1e-6)


class AbsentFindings:
    """The sentences of a model's prompts, encoded once, to find the reference of any image.

    Its own prompt sets are used, and the packaged one where it has none.
    """

    def __init__(self, model: ImageTextModel) -> None:
        sets = sets_of(model.prompts)
        texts = list(dict.fromkeys(text for prompts in sets for text in prompts.texts))
        place = {text: number for number, text in enumerate(texts)}
        self._model = model
        self._sides = [
            (name, [place[t] for t in sides.positive], [place[t] for t in sides.negative])
            for prompts in sets
            for name, sides in prompts.classes.items()
        ]
        with torch.inference_mode():
            self._vectors: Tensor = model.encode_sentences(texts)

    def of(self, features: ImageFeatures) -> list[AbsentScores]:
        """The scores of each of B images.

        A finding counts as absent where its sentences "it is there" score lower on average than
        those of "it is not"; where none does, the one nearest to that is taken. The percentiles
        are over all regions and all sentences of both kinds about these findings: neither what is
        not there, nor that it is not there, is seen at a place.
        """
        with torch.inference_mode():
            scores = finite(self._model.score(features, self._vectors), "grounding")
            regions = finite(self._model.region_scores(features, self._vectors), "grounding")
        references = []
        for totals, maps in zip(scores.astype(np.float64), regions, strict=True):
            gaps = [
                totals[there].mean() - totals[denied].mean() for _, there, denied in self._sides
            ]
            absent = [side for side, gap in zip(self._sides, gaps, strict=True) if gap < 0]
            absent = absent or [self._sides[int(np.argmin(gaps))]]
            rows = dict.fromkeys(n for _, there, denied in absent for n in (*there, *denied))
            middle, reference = np.percentile(maps[list(rows)], (50.0, PERCENTILE))
            names = tuple(name for name, *_ in absent)
            references.append(AbsentScores(float(reference), float(middle), names))
        return references
