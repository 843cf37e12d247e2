"""Ground sentences in an image: where in it does each of them score high?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.radiograph import Radiograph
from medclip_debias.errors import UserError
from medclip_debias.files import atomic_file
from medclip_debias.grounding.heatmaps import upsample_to_original

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel


@dataclass(frozen=True)
class Grounding:
    """One sentence in one image.

    Attributes:
        text: the sentence.
        score: the model's image-sentence similarity, on the cosine scale.
        grid: region-sentence cosines ``[rows, columns]``.
        heatmap: ``grid`` at the original's pixels ``[height, width]``, NaN where unseen.
    """

    text: str
    score: float
    grid: NDArray[np.float32]
    heatmap: NDArray[np.float32]

    @property
    def peak(self) -> tuple[float, float]:
        """Centre (x, y) of the highest pixel, in original coordinates."""
        row, column = np.unravel_index(int(np.nanargmax(self.heatmap)), self.heatmap.shape)
        return float(column) + 0.5, float(row) + 0.5


def ground_image(
    model: ImageTextModel,
    image: Radiograph | NDArray[Any],
    texts: Sequence[str],
    *,
    smoothing: float = 0.0,
) -> list[Grounding]:
    """Score sentences over an image in memory; the image is encoded once for all of them.

    Args:
        model: a trained dual encoder; its own preprocessing is applied.
        image: what `medclip_debias.data.images.read_radiograph` gives, or a 2-D array, high =
            bright, of any size.
        texts: sentences, none of them empty.
        smoothing: sigma of a Gaussian over the grid, in cells; 0 for none.
    """
    from medclip_debias.data.images import prepare_image

    sentences = checked_sentences(texts)
    settings = model.preprocessing
    height, width = image.shape
    how = settings.prepare
    geometry = SquareGeometry(height, width, how.size, settings.input_size, how.fit)
    pixels = torch.from_numpy(prepare_image(image, how)[None])
    with torch.inference_mode():
        regions = model.encode_images(pixels)
        vectors = model.encode_sentences(sentences)
        totals = model.similarity(regions, vectors)[0].float().cpu().numpy()
        maps = model.region_scores(regions, vectors)[0].float().cpu().numpy()
    return [
        Grounding(
            text,
            float(total),
            scores,
            upsample_to_original(scores, geometry, model.grid, smoothing=smoothing),
        )
        for text, total, scores in zip(
            sentences, totals, maps.reshape(-1, *model.grid.shape), strict=True
        )
    ]


def ground(
    model: ImageTextModel,
    image_path: Path,
    texts: Sequence[str],
    out: Path,
    *,
    smoothing: float = 0.0,
) -> list[dict[str, Any]]:
    """Write a picture and a map for each sentence: ``NN_words.png`` and ``NN_words.npy``.

    The map is float32 ``[height, width]`` of the original image, NaN where the model did not
    see it. One dict for each sentence comes back: ``text``, ``score``, ``lowest``, ``highest``,
    ``peak`` (x, y in original pixels), ``picture`` and ``map`` (paths).

    Raises:
        UserError: no sentence, an empty sentence, or an image that cannot be read.
    """
    from medclip_debias.data.images import read_radiograph
    from medclip_debias.grounding.overlay import slug, write_overlay

    checked_sentences(texts)
    settings = model.preprocessing.prepare
    image = read_radiograph(Path(image_path), settings.window)
    values = image.display()
    shown = np.clip(values, *np.percentile(values, settings.clip))
    rows = []
    for number, found in enumerate(ground_image(model, image, texts, smoothing=smoothing), start=1):
        name = f"{number:02d}_{slug(found.text)}"
        picture, map_file = Path(out) / f"{name}.png", Path(out) / f"{name}.npy"
        write_overlay(picture, shown, found.heatmap, caption=found.text)
        with atomic_file(map_file) as temporary, temporary.open("wb") as file:
            np.save(file, found.heatmap, allow_pickle=False)
        rows.append(
            {
                "text": found.text,
                "score": found.score,
                "lowest": float(np.nanmin(found.heatmap)),
                "highest": float(np.nanmax(found.heatmap)),
                "peak": list(found.peak),
                "picture": str(picture),
                "map": str(map_file),
            }
        )
    return rows


def checked_sentences(texts: Sequence[str]) -> list[str]:
    """The sentences without surrounding white space; none may be empty."""
    sentences = [text.strip() for text in texts]
    if not sentences:
        raise UserError("No sentence was given; pass at least one with --text.")
    if not all(sentences):
        number = sentences.index("") + 1
        raise UserError(f"Sentence {number} is empty; write what to look for, as in 'Left lung.'.")
    return sentences
