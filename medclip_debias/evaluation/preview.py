"""Six images with a sentence each, the same throughout a run, and where a model sees the sentences.

They are of the validate split, so that nobody steers a run by images that will judge it; phrases
with boxes come first, of different categories, then sentences of reports that say what is there. No
sentence is shown twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.loader import TrainingStudies
from medclip_debias.data.store import PreparedSet
from medclip_debias.evaluation.phrase_selection import VALIDATE, Phrase, select_phrases
from medclip_debias.evaluation.protocol import Skipped, geometry_of
from medclip_debias.grounding.absent import AbsentFindings
from medclip_debias.grounding.denials import is_groundable, normalised
from medclip_debias.grounding.heatmaps import upsample_to_original
from medclip_debias.models.finite import finite

if TYPE_CHECKING:
    from medclip_debias.models.interface import ImageTextModel

IMAGES = 6
SIDE = 224  # pixels of a picture
STRIP = 22  # pixels of the line below it
ALPHA = 0.6  # opacity of the highest score
BOX = (53, 224, 255)  # as in every picture of this project
_CHOICE = 17
_USUAL = re.compile(r"\b(?:normal|unremarkable|clear|stable|intact|unchanged|limits)\b")


@dataclass(frozen=True)
class Example:
    """One image and its sentence; ``boxes`` are true ones ``[K, 4]`` in the model's input."""

    row: int
    text: str
    boxes: NDArray[np.float64]


def choose(data: PreparedSet, input_size: int, count: int = IMAGES) -> list[Example]:
    """At most ``count`` images, each with a sentence; the same for every run on the same data.

    Studies of which some sentence says that something is there come before the others.
    """
    examples: dict[int, Example] = {}
    for example in _candidates(data, input_size):
        if normalised(example.text) not in {normalised(other.text) for other in examples.values()}:
            examples.setdefault(example.row, example)
        if len(examples) == count:
            break
    return list(examples.values())


def _candidates(data: PreparedSet, input_size: int) -> Iterator[Example]:
    """Phrases with boxes, in turn of each category, then sentences; their places decide."""
    listed: list[Phrase] = []
    with suppress(Skipped):
        listed = select_phrases(data, VALIDATE, input_size).phrases
    split = data.images["split"]
    # Held-out images are judged at the end of the run.
    listed = [each for each in listed if each.groundable and split.iloc[each.row] == VALIDATE]
    order = np.random.default_rng(_CHOICE).permutation(len(listed))
    categories = pd.Series([listed[place].category for place in order], dtype=object)
    turns = categories.groupby(categories).cumcount().to_numpy()
    for place in order[np.argsort(turns, kind="stable")]:
        phrase = listed[place]
        boxes = np.asarray(phrase.geometry.box_to_model(phrase.boxes), dtype=np.float64)
        yield Example(phrase.row, phrase.text, boxes)
    studies = TrainingStudies.of(data, VALIDATE)
    images, examples = studies.frontal or studies.rows, []
    for study in np.random.default_rng(_CHOICE).permutation(len(studies)):
        text = min((studies.texts[number] for number in studies.sentences[study]), key=_says_little)
        examples.append(Example(int(images[study][0]), text, np.zeros((0, 4))))
    yield from sorted(examples, key=lambda example: _says_little(example.text))


def _says_little(text: str) -> int:
    """0 for a sentence that says that something is there, more for others."""
    usual = _USUAL.search(normalised(text)) is not None
    return usual + 2 * (not is_groundable(text))


def pictures(
    model: ImageTextModel, data: PreparedSet, examples: list[Example]
) -> list[NDArray[np.uint8]]:
    """Each image, beside it the same with the map of its sentence and its boxes: ``[S, 2S, 3]``.

    Colour begins where a score exceeds what regions of this image get for findings that the model
    holds absent (`medclip_debias.grounding.absent`), and ends at the highest score of all.
    """
    rows = [example.row for example in examples]
    with torch.inference_mode():
        features = model.encode_images(torch.from_numpy(np.asarray(data.pixels[rows])))
        vectors = model.encode_sentences([example.text for example in examples])
        maps = finite(model.region_scores(features, vectors), "preview")
        references = [scores.reference for scores in AbsentFindings(model).of(features)]
    of_own = [maps[place, place].reshape(model.grid.shape) for place in range(len(examples))]
    side = model.preprocessing.input_size
    as_seen = SquareGeometry(side, side, side, side)
    highest = max(float(each.max()) for each in of_own)
    drawn = []
    for example, scores, reference in zip(examples, of_own, references, strict=True):
        crop = geometry_of(data, example.row, side).crop
        image = np.asarray(data.pixels[example.row])[crop : crop + side, crop : crop + side]
        heatmap = upsample_to_original(scores, as_seen, model.grid)
        drawn.append(_picture(image, heatmap, (reference, highest), example.boxes))
    return drawn


def _picture(
    image: NDArray[np.uint8],
    heatmap: NDArray[np.floating],
    limits: tuple[float, float],
    boxes: NDArray[np.float64],
) -> NDArray[np.uint8]:
    import cv2  # matplotlib's import would take longer than all pictures
    from PIL import Image, ImageDraw

    low, high = limits
    share = np.clip((heatmap - low) / max(high - low, 1e-6), 0, 1)
    alpha = np.where(heatmap > low, ALPHA * (0.15 + 0.85 * share), 0)[..., None]
    grey = np.repeat(image[..., None], 3, axis=-1)
    colours = cv2.applyColorMap((share * 255).round().astype(np.uint8), cv2.COLORMAP_INFERNO)
    mixed = (1 - alpha) * grey + alpha * colours[..., ::-1]  # cv2 gives blue first
    halves = [
        Image.fromarray(half).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
        for half in (grey, mixed.round().astype(np.uint8))
    ]
    pen = ImageDraw.Draw(halves[1])
    for x, y, width, height in boxes * SIDE / len(image):
        pen.rectangle((x, y, x + width, y + height), outline=BOX)
    return np.concatenate([np.asarray(half) for half in halves], axis=1)


def sheet(
    drawn: Sequence[NDArray[np.uint8]], texts: Sequence[str], columns: int = 2
) -> NDArray[np.uint8]:
    """All pictures as one, each above its sentence, ``columns`` beside each other, else white."""
    from PIL import Image, ImageDraw

    tiles = []
    for picture, text in zip(drawn, texts, strict=True):
        strip = Image.new("RGB", (picture.shape[1], STRIP), "white")  # what does not fit is cut
        ImageDraw.Draw(strip).text((4, 3), text, fill="black", font_size=13)
        tiles.append(np.concatenate([picture, np.asarray(strip)], axis=0))
    tiles += [np.full_like(tiles[0], 255)] * (-len(tiles) % columns)
    rows = [np.concatenate(tiles[i : i + columns], axis=1) for i in range(0, len(tiles), columns)]
    return np.concatenate(rows, axis=0)


def refuse(data: PreparedSet, wanted: str, task: str) -> str:
    """Why a run shows no pictures, or an empty sentence."""
    if wanted == "off":
        return "no pictures: train.preview is off"
    if task == "two_view":
        return "no pictures: a run of task two_view learns no sentences"
    if wanted == "auto" and not data.meta["synthetic"]:
        return "no pictures of patients by default; train.preview=on shows six with their sentences"
    return ""
