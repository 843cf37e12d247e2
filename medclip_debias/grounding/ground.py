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


class Grounder:
    """Sentences that are looked for in images: what of them is encoded is encoded once.

    Args:
        model: a trained dual encoder; its own preprocessing is applied.
        texts: sentences, none of them empty.
        smoothing: sigma of a Gaussian over the grid, in cells; 0 for none.
        absent: gives every `Grounding` its ``absent``; none when None.
        sharpen: how maps are sharpened (`medclip_debias.grounding.sharpen`).
        rule: gives every `Grounding` its ``verdict``; none when None.

    Raises:
        UserError: no sentence, an empty one, or a model without regions.
    """

    def __init__(
        self,
        model: ImageTextModel,
        texts: Sequence[str],
        *,
        smoothing: float = 0.0,
        absent: AbsentFindings | None = None,
        sharpen: Sharpen = "none",
        rule: SuppressionRule | None = None,
    ) -> None:
        sentences = checked_sentences(texts)
        self._places = region_grid(model)
        if smoothing < 0 or smoothing != smoothing:
            raise UserError(f"smoothing must be a positive number of grid cells, got {smoothing}.")
        self.model, self._sentences, self._smoothing = model, sentences, smoothing
        self._absent = absent
        self._sharpener = Sharpener(sharpen, sentences, model.prompts)
        self._suppressor = Suppressor(rule, model, sentences) if rule is not None else None
        with torch.inference_mode():
            vectors = model.encode_sentences([*sentences, *self._sharpener.texts])
        self._vectors, self._further = vectors[: len(sentences)], vectors[len(sentences) :]

    def of_images(
        self, images: Iterable[Radiograph | NDArray[Any]], batch_size: int = 8
    ) -> Iterator[list[Grounding]]:
        """Each image's `Grounding` of every sentence, in turn.

        Images are taken a batch at a time, and only their prepared squares are held together, so
        any number of them fits.

        Args:
            images: what `medclip_debias.data.images.read_radiograph` gives, or 2-D arrays, high =
                bright, of any size; a generator that reads files is fine.
            batch_size: images encoded at a time.

        Raises:
            UserError: an image of one grey value.
        """
        from medclip_debias.data.images import prepare_image

        remaining = iter(images)
        while True:
            squares, shapes = [], []
            for image in islice(remaining, batch_size):
                shown = image if isinstance(image, Radiograph) else Radiograph.of(image)
                squares.append(prepare_image(shown, self.model.preprocessing.prepare))
                shapes.append(image.shape)
            if not squares:
                return
            with torch.inference_mode():
                features = self.model.encode_images(torch.from_numpy(np.stack(squares)))
            yield from self.of_features(features, shapes)

    def of_features(
        self, features: ImageFeatures, shapes: Sequence[tuple[int, int]]
    ) -> Iterator[list[Grounding]]:
        """The same for B images that were encoded before, of these rows and columns."""
        model, how = self.model, self.model.preprocessing
        numbers = range(len(self._sentences))
        with torch.inference_mode():
            totals = finite(model.score(features, self._vectors), "grounding")
            maps = self._sharpener.maps(model, features, numbers, self._vectors, self._further)
        absent = self._absent.of(features) if self._absent else [None] * len(shapes)
        verdicts: Sequence[Sequence[Verdict | None]] = [[None] * len(numbers)] * len(shapes)
        if self._suppressor is not None:
            verdicts = self._suppressor.of(features)
        for image, shape in enumerate(shapes):
            square = SquareGeometry(*shape, how.prepare.size, how.input_size, how.prepare.fit)
            yield [
                Grounding(
                    text=text,
                    score=float(totals[image][number]),
                    grid=maps[image][number].reshape(self._places.shape),
                    geometry=square,
                    places=self._places,
                    smoothing=self._smoothing,
                    absent=absent[image],
                    verdict=verdicts[image][number],
                )
                for number, text in enumerate(self._sentences)
            ]


def ground_image(
    model: ImageTextModel, image: Radiograph | NDArray[Any], texts: Sequence[str], **options: Any
) -> list[Grounding]:
    """The `Grounding` of every sentence in one image, as of `ground_images`."""
    return next(Grounder(model, texts, **options).of_images([image]))


def ground_images(
    model: ImageTextModel,
    images: Iterable[Radiograph | NDArray[Any]],
    texts: Sequence[str],
    *,
    batch_size: int = 8,
    **options: Any,
) -> Iterator[list[Grounding]]:
    """Score sentences over many images: each image and each sentence is encoded once.

    The arguments are checked at once, not when the first result is asked for.

    Args:
        model: a trained dual encoder; its own preprocessing is applied.
        images: as for `Grounder.of_images`.
        texts: sentences, none of them empty.
        batch_size: images encoded at a time.
        options: those of `Grounder`.

    Returns:
        For each image in turn, its `Grounding` of every sentence.

    Raises:
        UserError: as for `Grounder`, or an image of one grey value.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    return Grounder(model, texts, **options).of_images(images, batch_size)


def region_grid(model: ImageTextModel) -> RegionGrid:
    """Where the model's regions lie.

    Raises:
        UserError: it has one region alone, the whole image.
    """
    grid = model.grid
    if grid.rows * grid.columns < 2:
        raise UserError(
            "this model has no regions (one vector per image), so it cannot tell where a sentence"
            " is seen; ground with a model that keeps its regions."
        )
    return grid
