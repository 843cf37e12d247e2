"""What the two sides of each class say of images: the mean score over that side's prompts.

A model that ranks images by "X" may not understand "no X" at all (CARZero on ChestX-ray14: AUC
.81 from the positive prompts alone, .43 from the negative ones), and the difference of the two
hides it. So both sides are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.prompts import PromptSet

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def side_columns(prompts: PromptSet) -> list[list[int]]:
    """Places of each side's texts: positive and negative of the first class, of the second, ..."""
    column = {text: number for number, text in enumerate(prompts.texts)}
    # In one order, so that sides with the same prompts score the same to the last bit.
    return [
        sorted(column[text] for text in side)
        for sides in prompts.classes.values()
        for side in (sides.positive, sides.negative)
    ]


@dataclass(frozen=True)
class SideScores:
    """The two scores of each class: ``[images]`` by class, the same classes on both sides.

    ``stored`` are differences as an item table has them, which may lack the sides.
    """

    positive: Mapping[str, Floats]
    negative: Mapping[str, Floats]
    shared: bool = False
    stored: Mapping[str, Floats] | None = None

    @classmethod
    def of(cls, scores: Floats, prompts: PromptSet, one: Callable[..., Any] = np.mean) -> Self:
        """From scores ``[images, texts]`` in the order of ``prompts.texts``.

        ``one`` makes one score of those of a side.
        """
        columns = side_columns(prompts)
        sides = [one(scores[:, side], axis=1) for side in columns]
        positive, negative = (
            dict(zip(prompts.classes, sides[first::2], strict=True)) for first in (0, 1)
        )
        return cls(positive, negative, shared=len(set(map(tuple, columns))) < len(columns))

    @cached_property
    def differences(self) -> dict[str, Floats]:
        """Positive minus negative score of each class: ``[images]``."""
        if self.stored is not None:
            return dict(self.stored)
        return {name: score - self.negative[name] for name, score in self.positive.items()}

    @cached_property
    def contradictions(self) -> dict[str, Bools]:
        """Which images contradict themselves on each class ``[images]``; empty for one class.

        An image does when both sides of the class score strictly higher than either side of every
        other class: of all that could be said of it, the model finds "X" and "no X" the likeliest.
        No image does so on two classes.
        """
        names = list(self.positive)
        if len(names) < 2:
            return {}
        sides = np.stack([[self.positive[name], self.negative[name]] for name in names])
        lowest, highest = sides.min(axis=1), sides.max(axis=1)  # [classes, images]
        return {
            name: lowest[place] > np.delete(highest, place, axis=0).max(axis=0)
            for place, name in enumerate(names)
        }

    @property
    def chance(self) -> float | None:
        """Contradiction rate of scores in random order: ``1 / (2 classes - 1)``.

        Whichever of the sides is first, one of the others is its opposite. None for one class, and
        where two sides have the same prompts.
        """
        count = len(self.positive)
        return 1 / (2 * count - 1) if count > 1 and not self.shared else None


def prompt_differences(scores: Floats, prompts: PromptSet) -> dict[str, Floats]:
    """Positive minus negative score of each class: ``[images]``."""
    return SideScores.of(scores, prompts).differences


def with_both_labels(labels: Mapping[str, Floats]) -> dict[str, Floats]:
    """The classes of which some image is 1 and some 0."""
    return {n: v for n, v in labels.items() if (v == 1).any() and (v == 0).any()}


def labelled_scores(
    scores: Mapping[str, Floats], labels: Mapping[str, Floats]
) -> dict[str, tuple[Bools, Floats]]:
    """Labels and scores of the images that have a label, of each class that has both of them."""
    ours = {name: np.asarray(labels[name], np.float64) for name in scores if name in labels}
    return {
        name: (values[known] == 1, np.asarray(scores[name], np.float64)[known])
        for name, values in with_both_labels(ours).items()
        for known in (~np.isnan(values),)
    }
