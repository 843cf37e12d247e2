"""Boxes that teach: the map of a phrase shall lie where experts drew its boxes.

Beside the objective, which reads whole images and sentences, each step takes some phrases with
boxes of training images. A phrase's map becomes a distribution over the regions of its image, and
the loss is the negative logarithm of the boxes' part of it::

    loss = - log sum_r m_r softmax_r(t <x_r, y>)

with region vectors x, sentence vector y, temperature t, and m_r the share of region r inside the
boxes, divided by the largest. A sentence that names a side is also held against itself with left
and right exchanged: the softmax then runs over the regions of both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.data.augment import augment, draw
from medclip_debias.data.boxes import side_of
from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.joint import JointSet
from medclip_debias.data.sources.findings import finding_sentence
from medclip_debias.data.store import PreparedSet
from medclip_debias.data.templates import sentences_of, sided_sentences
from medclip_debias.errors import UserError, counted
from medclip_debias.evaluation.phrase_selection import Phrase, select_phrases
from medclip_debias.files import file_hash
from medclip_debias.losses.distributed import Ranks
from medclip_debias.models.region_grid import RegionGrid
from medclip_debias.training.settings import BoxSettings, RunSettings

# First word of the seed of the phrases of a step, so that they share no stream with its batch.
_BOXES = 7
_LEFT_ASIDE = {
    "other_splits": "on images of other splits",
    "not_training": "on images whose patients do not train",
    "other_annotation_splits": "of another split of their own",
    "other_views": "on images that are not frontal",
    "without_image": "on images that are not in the set",
    "without_box": "without a box inside their image",
    "other_shape": "annotated on an image of another shape",
    "denials": "that no box can show",
    "zero_area_boxes": "boxes without area",
    "outside_boxes": "boxes outside their image",
}


class BoxedPhrase(NamedTuple):
    """A finding of one image: how it may be said, plainly and with its side, and where it is."""

    row: int
    plain: Sequence[str]
    sided: Sequence[str]
    boxes: NDArray[np.floating]  # [K, 4] of x, y, width, height in prepared pixels


class BoxBatch(NamedTuple):
    """What a step takes: N images, a sentence of each, and where it lies."""

    images: Tensor  # uint8 [N, C, C]
    texts: list[str]
    masks: Tensor  # float32 [N, regions], 0 to 1


class BoxTerm:
    """The phrases of training images, and the loss of those that a step draws.

    Args:
        prepared: the run's sets.
        settings: the run's.
        ranks: which process this is; each has its share of the phrases.
        grid: where the regions lie.
        where: file the settings came from, for messages.

    Raises:
        UserError: no phrase has a box on an image that trains, or processes cannot share a step's.
    """

    def __init__(
        self,
        prepared: PreparedSet,
        settings: RunSettings,
        ranks: Ranks,
        grid: RegionGrid,
        where: str = "the settings",
    ) -> None:
        assert settings.train.boxes is not None
        self.options: BoxSettings = settings.train.boxes
        self.train, self.grid, self.prepared = settings.train, grid, prepared
        self.input_size = settings.preprocessing.input_size
        if self.options.phrases % ranks.world:
            raise UserError(
                f"{where}: setting 'train.boxes.phrases' is {self.options.phrases}, which"
                f" {ranks.world} processes cannot share evenly; make it a multiple of that."
            )
        share = self.options.phrases // ranks.world
        self._mine = slice(ranks.rank * share, (ranks.rank + 1) * share)
        sets = settings.prepared
        files = [each.boxes for each in sets] if isinstance(sets, tuple) else [()]
        self.left_aside = Counter[str]()
        self.phrases = boxed_phrases(
            prepared, files, self.input_size, sides=self.options.sides, left_aside=self.left_aside
        )
        self.files_hash = file_hash(*(file for of_set in files for file in of_set))
        if not self.phrases:
            raise UserError(
                f"{where}: 'train.boxes' is set, but no phrase has a box on an image that trains;"
                " prepare the set with --phrases FILE, name files in its 'boxes', or leave it out."
                f"{self._said_aside()}"
            )
        named = Counter(phrase.plain[0] for phrase in self.phrases)
        # Frequent findings less often than they occur, rare ones more often.
        chances = np.array([named[phrase.plain[0]] ** -0.5 for phrase in self.phrases])
        self._chances = chances / chances.sum()

    def describe(self) -> str:
        """What teaches, and what was left aside, in a sentence."""
        images = len({phrase.row for phrase in self.phrases})
        sides = sum(bool(phrase.sided) for phrase in self.phrases)
        return (
            f"boxes of {counted(len(self.phrases), 'phrase')} on {counted(images, 'image')} teach"
            f" where it is ({sides} are also said with their side);{self._said_aside()}"
        )

    def batch(self, step: int) -> BoxBatch:
        """This process's share of the phrases of ``step``, a function of the seed and the step."""
        rng = np.random.default_rng([_BOXES, self.train.seed, step])
        count, pixels = self.options.phrases, self.prepared.pixels
        phrases = [self.phrases[n] for n in rng.choice(len(self.phrases), count, p=self._chances)]
        texts = [_said(phrase, rng) for phrase in phrases]
        draws = draw(rng, self.train.augment, count, pixels.shape[1], self.input_size)
        phrases, draws = phrases[self._mine], draws.part(self._mine)
        corners = np.stack([draws.left, draws.top, *2 * [torch.zeros_like(draws.top)]], axis=1)
        boxes = [phrase.boxes - corner for phrase, corner in zip(phrases, corners, strict=True)]
        masks = np.stack([inside(self.grid, of_one) for of_one in boxes])
        images = augment(pixels, [phrase.row for phrase in phrases], draws)
        return BoxBatch(
            torch.from_numpy(images), texts[self._mine], torch.from_numpy(masks).float()
        )

    def _said_aside(self) -> str:
        aside = {said: self.left_aside[name] for name, said in _LEFT_ASIDE.items()}
        named = [f"{count} {said}" for said, count in aside.items() if count]
        return f" phrases left aside: {', '.join(named) or 'none'}"


def boxed_phrases(
    prepared: PreparedSet,
    files: Sequence[Sequence[Path]],
    input_size: int,
    *,
    sides: bool,
    left_aside: Counter[str],
) -> list[BoxedPhrase]:
    """The phrases with boxes on images that train.

    Args:
        prepared: a set, or several.
        files: of each set, files of boxes beside its own.
        input_size: side C of what the model sees.
        sides: whether a finding is also said with its side.
        left_aside: where phrases that are left aside are counted, by the reason.

    Raises:
        UserError: a file cannot be read.
    """
    trains = (prepared.images["split"] == "train").to_numpy()
    parts: Sequence[PreparedSet] = [prepared]
    starts, weights = [0], [1.0]
    if isinstance(prepared, JointSet):
        parts, starts, weights = prepared.parts, prepared.starts.tolist(), prepared.weights
    taught = []
    for part, start, weight, others in zip(parts, starts, weights, files, strict=False):
        if not weight:
            continue
        found: dict[tuple[int, str], list[Phrase]] = {}
        for file in (None, *others):  # None: those that the set was prepared with
            selected = select_phrases(part, "train", input_size, file, may_be_none=True)
            left_aside.update(selected.counts)
            for phrase in selected.phrases:
                found.setdefault((start + phrase.row, phrase.text), []).append(phrase)
        for (row, _), alike in found.items():
            if not trains[row] or not alike[0].groundable:
                left_aside["denials" if trains[row] else "not_training"] += len(alike)
            else:
                taught.append(boxed(row, alike, sides=sides))
    return taught


def boxed(row: int, alike: Sequence[Phrase], *, sides: bool) -> BoxedPhrase:
    """The phrases of one image that say the same as one, with the boxes of all.

    A phrase that is a finding's name is also said by the other sentences of that label
    (`medclip_debias.data.templates`), and, where all its boxes lie in one half of the image, as
    one of the patient's right or left: in a frontal radiograph the right is on the image's left.
    """
    first = alike[0]
    frame = first.geometry
    prepared = SquareGeometry(frame.height, frame.width, frame.size, frame.size, frame.fit)
    boxes = np.array([box for phrase in alike for box in phrase.boxes])
    plain, sided = [first.text], list[str]()
    if first.text == finding_sentence(first.category):
        plain += sentences_of(first.category, "present")
        if sides and (side := side_of(boxes.tolist(), frame.width)):
            sided = sided_sentences(first.category, side)
    return BoxedPhrase(row, plain, sided, prepared.box_to_model(boxes))


def _said(phrase: BoxedPhrase, rng: np.random.Generator) -> str:
    """A sentence of the phrase, with its side every other time."""
    forms = phrase.sided if phrase.sided and rng.random() < 0.5 else phrase.plain
    return forms[int(rng.integers(len(forms)))]


def inside(grid: RegionGrid, boxes: NDArray[np.floating]) -> NDArray[np.float64]:
    """The share of each region that a box covers, over the largest such share: ``[regions]``.

    A region is the square of the grid's stride around its centre. All are 0 where no box reaches
    one of them.

    >>> inside(RegionGrid.patches(2, 2, 8), np.array([[0.0, 0, 4, 2]])).tolist()  # top left
    [1.0, 0.0, 0.0, 0.0]
    """
    low = grid.centres()[..., None, :] - grid.stride / 2  # [rows, columns, 1, 2]
    reach = np.minimum(low + grid.stride, boxes[:, :2] + boxes[:, 2:]) - np.maximum(
        low, boxes[:, :2]
    )
    covered = (reach.clip(0) / grid.stride).prod(axis=-1).max(axis=-1).reshape(-1)
    return covered / max(float(covered.max()), 1e-12)


def box_loss(
    maps: Tensor, masks: Tensor, temperature: float, mirror: Tensor | None = None
) -> Tensor:
    """Negative logarithm of the part of each map that lies in its boxes; the mean over phrases.

    Args:
        maps: cosines of a sentence with the regions of its image ``[N, R]``.
        masks: `inside` of each ``[N, R]``; a phrase whose mask is 0, its boxes outside the crop,
            adds nothing.
        temperature: by which cosines are multiplied.
        mirror: maps of the sentences with left and right exchanged ``[N, R]``; minus infinity
            where a sentence names no side.

    Example:
        >>> even = box_loss(torch.zeros(1, 4), torch.tensor([[1.0, 0, 0, 0]]), 14.0)
        >>> round(float(even.exp()), 4)  # one region of four
        4.0
    """
    maps = temperature * maps.float()
    everything = maps if mirror is None else torch.cat([maps, temperature * mirror.float()], dim=1)
    there = masks.any(dim=1)
    within = torch.where(masks > 0, maps + masks.clamp_min(1e-12).log(), -torch.inf)
    within = torch.where(there[:, None], within, torch.zeros_like(within))
    losses = everything.logsumexp(dim=1) - within.logsumexp(dim=1)
    return (losses * there).mean()
