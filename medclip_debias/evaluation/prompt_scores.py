"""What the prompts of each class score: "X" and "no X" apart, their difference, contradictions.

A model that ranks images by "X" may not understand "no X" at all (CARZero on ChestX-ray14: AUC
.81 from the positive prompts alone, .43 from the negative ones), and the difference of the two
hides it. So both sides are kept, and measured each for itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.prompts import PromptSet

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def class_scores(scores: Floats, prompts: PromptSet, side: str = "positive") -> dict[str, Floats]:
    """Mean score of each class's ``positive`` or ``negative`` prompts: ``[images]``.

    Args:
        scores: ``[images, texts]`` in the order of ``prompts.texts``.
        prompts: the prompt set.
        side: whose prompts.
    """
    column = {text: number for number, text in enumerate(prompts.texts)}
    return {
        # In one order, so that sides with the same prompts score the same to the last bit.
        name: scores[:, sorted(column[text] for text in getattr(sides, side))].mean(axis=1)
        for name, sides in prompts.classes.items()
    }


@dataclass(frozen=True)
class SideScores:
    """The two scores of each class: ``[images]`` by class, the same classes on both sides.

    Attributes:
        positive: mean score of the class's positive prompts.
        negative: mean score of its negative ones.
        shared: whether two of the sides have the same prompts, so that their scores are equal.
    """

    positive: Mapping[str, Floats]
    negative: Mapping[str, Floats]
    shared: bool = False

    @classmethod
    def of(cls, scores: Floats, prompts: PromptSet) -> Self:
        """From scores ``[images, texts]`` in the order of ``prompts.texts``."""
        sides = [
            frozenset(side) for c in prompts.classes.values() for side in (c.positive, c.negative)
        ]
        positive, negative = (class_scores(scores, prompts, s) for s in ("positive", "negative"))
        return cls(positive, negative, shared=len(set(sides)) < len(sides))

    @cached_property
    def differences(self) -> dict[str, Floats]:
        """Positive minus negative score of each class: ``[images]``."""
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
    """Positive minus negative score of each class: ``[images]``; see `class_scores`."""
    return SideScores.of(scores, prompts).differences
