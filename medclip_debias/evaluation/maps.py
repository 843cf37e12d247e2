"""Protocols that look at the map of each asked sentence on its image."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from medclip_debias.evaluation.protocol import Protocol, Request, items_by_row
from medclip_debias.grounding.sharpen import Sharpener

if TYPE_CHECKING:
    from torch import Tensor

    from medclip_debias.grounding.counterparts import Reader
    from medclip_debias.grounding.settings import Sharpen
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel
    from medclip_debias.models.region_grid import RegionGrid


class MapProtocol(Protocol):
    """Each item is a sentence on the image of a row; `take` gets their maps, one by one."""

    def ask(
        self,
        request: Request,
        rows: Sequence[int],
        texts: Sequence[str],
        *,
        sharpen: Sharpen = "none",
        reader: Reader | None = None,
    ) -> None:
        """Plan the map of each sentence on the image in its row."""
        self.sentences = list(dict.fromkeys(texts))
        self._sharpener = Sharpener(sharpen, self.sentences, request.model.prompts, reader)
        self.texts = list(dict.fromkeys([*self.sentences, *self._sharpener.texts]))
        place = {text: number for number, text in enumerate(self.sentences)}
        self.columns = [place[text] for text in texts]
        self.rows = frozenset(rows)
        self.on_image = items_by_row(rows)

    def vectors_of(self, texts: Sequence[str]) -> Tensor:
        """The unit vectors of some of `texts`."""
        return self._vectors[[self._place[text] for text in texts]]

    def begin(self, model: ImageTextModel, vectors: Tensor) -> None:
        self.model, self._vectors = model, vectors
        self._place = {text: number for number, text in enumerate(self.texts)}
        self._asked, self._further = map(self.vectors_of, (self.sentences, self._sharpener.texts))

    def see(self, rows: Sequence[int], features: ImageFeatures) -> None:
        grid = self.model.grid
        for row, own in zip(rows, features, strict=True):
            numbers = self.on_image.get(row, ())
            if not numbers:
                continue
            columns = [self.columns[number] for number in numbers]
            vectors = self._asked[columns]
            maps = self._sharpener.maps(self.model, own, columns, vectors, self._further)[0]
            for number, scores in zip(numbers, maps, strict=True):
                self.take(number, scores.reshape(grid.shape), grid)

    @abstractmethod
    def take(self, number: int, scores: NDArray[np.float32], grid: RegionGrid) -> None:
        """Take the map ``[rows, columns]`` of an item, by its number."""
