"""One pass over the images: everything the three protocols need, and nothing kept besides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.evaluation.phrase_grounding import score_phrase
from medclip_debias.grounding.boxes import box_features, visible_boxes

if TYPE_CHECKING:
    from medclip_debias.data.store import PreparedSet
    from medclip_debias.models.interface import ImageTextModel

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Phrase:
    """One phrase of the set: ``row`` is its image's row, ``sentence`` its distinct sentence's."""

    phrase_id: str
    row: int
    category: str
    text: str
    sentence: int
    boxes: list[list[float]]
    geometry: SquareGeometry
    patient: str


@dataclass
class Encoded:
    """What one pass over the images gave.

    Attributes:
        prompt_scores: image row to its similarity with every prompt ``[T]``.
        grids: per phrase, region-sentence cosines ``[rows, columns]``.
        metrics: per phrase, its grounding metrics.
        features: per phrase, its box feature ``[D]``; None where the model saw no box.
        sentences: unit vectors of the phrases' distinct sentences ``[S, D]``.
    """

    prompt_scores: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    grids: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    metrics: dict[int, dict[str, float]] = field(default_factory=dict)
    features: dict[int, NDArray[np.float32] | None] = field(default_factory=dict)
    sentences: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))


def encode(
    model: ImageTextModel,
    prepared: PreparedSet,
    prompt_rows: Sequence[int],
    prompts: Sequence[str],
    phrases: Sequence[Phrase],
    sentences: Sequence[str],
    *,
    batch_size: int,
    smoothing: float = 0.0,
    progress: Progress | None = None,
) -> Encoded:
    """Encode every image once and score it.

    Args:
        model: in evaluation mode.
        prepared: the set; images are read by row, in order.
        prompt_rows: rows scored against ``prompts``.
        prompts: zero-shot prompts.
        phrases: phrases to ground; their images are encoded too.
        sentences: the phrases' distinct sentences.
        batch_size: images encoded at a time.
        smoothing: of the heatmaps, in grid cells.
        progress: called with images done and images in total.
    """
    of_image: dict[int, list[int]] = {}
    for number, phrase in enumerate(phrases):
        of_image.setdefault(phrase.row, []).append(number)
    scored = set(prompt_rows)
    rows = sorted(scored | set(of_image))
    result = Encoded()
    with torch.inference_mode():
        prompt_vectors = model.encode_sentences(prompts)
        sentence_vectors = model.encode_sentences(sentences)
        result.sentences = to_numpy(sentence_vectors)
        for start in range(0, len(rows), batch_size):
            batch = rows[start : start + batch_size]
            regions = model.encode_images(torch.from_numpy(np.asarray(prepared.pixels[batch])))
            if scored:
                scores = to_numpy(model.similarity(regions, prompt_vectors))
                result.prompt_scores |= {
                    row: scores[place] for place, row in enumerate(batch) if row in scored
                }
            for place, row in enumerate(batch):
                if row in of_image:
                    numbers = of_image[row]
                    _ground(model, regions[place], phrases, numbers, sentence_vectors, result)
                    for number in numbers:
                        phrase = phrases[number]
                        result.metrics[number] = score_phrase(
                            result.grids[number],
                            phrase.boxes,
                            phrase.geometry,
                            model.grid,
                            smoothing=smoothing,
                        )
            if progress:
                progress(start + len(batch), len(rows))
    return result


def _ground(
    model: ImageTextModel,
    regions: Tensor,
    phrases: Sequence[Phrase],
    numbers: Sequence[int],
    sentence_vectors: Tensor,
    result: Encoded,
) -> None:
    """Maps and box features of one image's phrases; ``regions`` is ``[N, D]``."""
    vectors = sentence_vectors[[phrases[number].sentence for number in numbers]]
    grids = to_numpy(model.region_scores(regions[None], vectors)[0])
    boxes = [visible_boxes(phrases[n].boxes, phrases[n].geometry) for n in numbers]
    seen = [place for place, found in enumerate(boxes) if len(found)]
    features = (
        box_features(
            regions.expand(len(seen), -1, -1),
            model.grid,
            [boxes[place] for place in seen],
        )
        if seen
        else None
    )
    for place, number in enumerate(numbers):
        result.grids[number] = grids[place].reshape(model.grid.shape)
        result.features[number] = None
    if features is not None:
        for place, vector in zip(seen, to_numpy(features), strict=True):
            result.features[numbers[place]] = vector


def to_numpy(tensor: Tensor) -> NDArray[np.float32]:
    """Float32 on the CPU."""
    array: NDArray[np.float32] = tensor.float().cpu().numpy()
    return array
