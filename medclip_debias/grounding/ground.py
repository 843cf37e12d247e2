"""Ground sentences in images: where in each of them does each sentence score high?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.images.radiograph import Radiograph
from medclip_debias.errors import UserError
from medclip_debias.grounding.absent import AbsentFindings, AbsentScores
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.grounding.sentences import checked_sentences
from medclip_debias.grounding.settings import Sharpen, SuppressionRule
from medclip_debias.grounding.sharpen import Sharpener
from medclip_debias.grounding.suppression import Suppressor, Verdict
from medclip_debias.models.finite import finite
from medclip_debias.models.region_grid import RegionGrid

if TYPE_CHECKING:
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel


@dataclass(frozen=True)
class Grounding:
    """One sentence in one image.

    Attributes:
        text: the sentence.
        score: the model's image-sentence similarity, on the cosine scale.
        grid: region-sentence cosines ``[rows, columns]``.
        geometry: the image's way into the model.
        places: where the regions lie in the model's input.
        smoothing: sigma of the Gaussian over the grid, in cells; 0 for none.
        verdict: whether the sentence is in the image at all, by a rule of suppression; None where
            that was not asked for.
        absent: how high the image's regions score for findings that it does not show; None where
            that was not asked for.
    """

    text: str
    score: float
    grid: NDArray[np.float32]
    geometry: SquareGeometry
    places: RegionGrid
    smoothing: float = 0.0
    absent: AbsentScores | None = None
    verdict: Verdict | None = None

    @property
    def heatmap(self) -> NDArray[np.float32]:
        """``grid`` at the original's pixels ``[height, width]``, NaN where unseen.

        Computed anew at every access, and not kept: 20 sentences over a radiograph of 3056 x 2544
        pixels would hold 600 MB.
        """
        return upsample_to_original(self.grid, self.geometry, self.places, smoothing=self.smoothing)

    @property
    def peak(self) -> tuple[float, float]:
        """Centre (x, y) of the highest pixel, in original coordinates."""
        return highest_pixel(self.heatmap)


def highest_pixel(heatmap: NDArray[np.floating]) -> tuple[float, float]:
    """Centre (x, y) of the highest pixel of a map ``[height, width]``; NaN does not count."""
    row, column = np.unravel_index(int(np.nanargmax(heatmap)), heatmap.shape)
    return float(column) + 0.5, float(row) + 0.5


def ground_image(
    model: ImageTextModel,
    image: Radiograph | NDArray[Any],
    texts: Sequence[str],
    *,
    smoothing: float = 0.0,
    sharpen: Sharpen = "none",
    rule: SuppressionRule | None = None,
) -> list[Grounding]:
    """Score sentences over an image in memory; the image is encoded once for all of them.

    Args:
        model: a trained dual encoder; its own preprocessing is applied.
        image: what `medclip_debias.data.images.read_radiograph` gives, or a 2-D array, high =
            bright, of any size.
        texts: sentences, none of them empty.
        smoothing: sigma of a Gaussian over the grid, in cells; 0 for none.
        sharpen: as for `ground_images`.
        rule: as for `ground_images`.

    Raises:
        UserError: no sentence, an empty one, a model without regions, or an image of one grey
            value.
    """
    found = ground_images(model, [image], texts, smoothing=smoothing, sharpen=sharpen, rule=rule)
    return next(found)


def ground_images(
    model: ImageTextModel,
    images: Iterable[Radiograph | NDArray[Any]],
    texts: Sequence[str],
    *,
    smoothing: float = 0.0,
    batch_size: int = 8,
    absent: AbsentFindings | None = None,
    sharpen: Sharpen = "none",
    rule: SuppressionRule | None = None,
) -> Iterator[list[Grounding]]:
    """Score sentences over many images: each image and each sentence is encoded once.

    Images are taken from ``images`` a batch at a time, and only their prepared squares are held
    together, so any number of them fits. The arguments are checked at once, not when the first
    result is asked for.

    Args:
        model: as for `ground_image`.
        images: as for `ground_image`; a generator that reads files is fine.
        texts: sentences, none of them empty.
        smoothing: sigma of a Gaussian over the grid, in cells; 0 for none.
        batch_size: images encoded at a time.
        absent: gives every `Grounding` its ``absent``; none when None.
        sharpen: how maps are sharpened (`medclip_debias.grounding.sharpen`).
        rule: gives every `Grounding` its ``verdict``; none when None.

    Yields:
        For each image in turn, its `Grounding` of every sentence.

    Raises:
        UserError: as for `ground_image`.
    """
    sentences = checked_sentences(texts)
    region_grid(model)
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if smoothing < 0 or smoothing != smoothing:
        raise UserError(f"smoothing must be a positive number of grid cells, got {smoothing}.")
    asked = _Asked(model, sentences, smoothing, absent, sharpen, rule)
    return _ground_images(model, images, asked, batch_size)


def region_grid(model: ImageTextModel) -> RegionGrid:
    """Where the model's regions lie.

    Raises:
        UserError: it has one region alone, the whole image.
    """
    grid = model.grid
    if grid.rows * grid.columns < 2:
        raise UserError(
            "this model has no regions (one vector an image), so it cannot tell where a sentence"
            " is seen; ground with a model that keeps its regions."
        )
    return grid


def _ground_images(
    model: ImageTextModel,
    images: Iterable[Radiograph | NDArray[Any]],
    asked: _Asked,
    batch_size: int,
) -> Iterator[list[Grounding]]:
    from medclip_debias.data.images import prepare_image

    settings = model.preprocessing
    left = iter(images)
    while True:
        squares, shapes = [], []
        for image in islice(left, batch_size):
            squares.append(prepare_image(image, settings.prepare))
            shapes.append(image.shape)
        if not squares:
            return
        with torch.inference_mode():
            features = model.encode_images(torch.from_numpy(np.stack(squares)))
        yield from asked.of(features, shapes)


def ground_features(
    model: ImageTextModel,
    features: ImageFeatures,
    shape: tuple[int, int],
    texts: Sequence[str],
    *,
    smoothing: float = 0.0,
    absent: AbsentFindings | None = None,
) -> list[Grounding]:
    """Score sentences over an image that was encoded before.

    Args:
        model: as for `ground_image`.
        features: of that one image.
        shape: rows and columns of the original image.
        texts: sentences, none of them empty.
        smoothing: sigma of a Gaussian over the grid, in cells; 0 for none.
        absent: as for `ground_images`.

    Raises:
        UserError: no sentence, an empty one, or a model without regions.
    """
    sentences = checked_sentences(texts)
    region_grid(model)
    return next(_Asked(model, sentences, smoothing, absent).of(features, [shape]))


class _Asked:
    """Sentences that are asked of images: what of them is encoded is encoded once."""

    def __init__(
        self,
        model: ImageTextModel,
        sentences: Sequence[str],
        smoothing: float,
        absent: AbsentFindings | None = None,
        sharpen: Sharpen = "none",
        rule: SuppressionRule | None = None,
    ) -> None:
        self._model, self._sentences, self._smoothing = model, sentences, smoothing
        self._absent = absent
        self._sharpener = Sharpener(sharpen, sentences, model.prompts)
        self._suppressor = Suppressor(rule, model, sentences) if rule is not None else None
        with torch.inference_mode():
            vectors = model.encode_sentences([*sentences, *self._sharpener.texts])
        self._vectors, self._further = vectors[: len(sentences)], vectors[len(sentences) :]

    def of(
        self, features: ImageFeatures, shapes: Sequence[tuple[int, int]]
    ) -> Iterator[list[Grounding]]:
        """Groundings of every sentence on each of B images."""
        model, vectors = self._model, self._vectors
        settings, places = model.preprocessing, region_grid(model)
        how = settings.prepare
        numbers = range(len(self._sentences))
        with torch.inference_mode():
            totals = finite(model.score(features, vectors), "grounding")
            maps = self._sharpener.maps(model, features, numbers, vectors, self._further)
        nothing = self._absent.of(features) if self._absent else [None] * len(shapes)
        verdicts: Sequence[Sequence[Verdict | None]] = [[None] * len(numbers)] * len(shapes)
        if self._suppressor is not None:
            verdicts = self._suppressor.of(features)
        for (height, width), scores, grids, low, own in zip(
            shapes, totals, maps, nothing, verdicts, strict=True
        ):
            geometry = SquareGeometry(height, width, how.size, settings.input_size, how.fit)
            grid = grids.reshape(-1, *places.shape)
            yield [
                Grounding(text, float(score), one, geometry, places, self._smoothing, low, verdict)
                for text, score, one, verdict in zip(
                    self._sentences, scores, grid, own, strict=True
                )
            ]
