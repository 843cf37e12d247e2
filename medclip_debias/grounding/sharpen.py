"""Sharper maps without training: what a sentence's map owes to words that name no finding goes.

Four ways, chosen by name. None of them needs an image beyond the one that is looked at:

- ``contrast``: less the map of the sentence that denies the same findings ("No X.").
- ``redundant``: less the mean map of the model's own prompts, which is what all sentences have in
  common (the redundant features of CLIP Surgery, Li et al. 2023, section 3.3).
- ``prune``: the mean of the map and of those of the sentence with one word left out, of those
  that the image scores at least as high: words that the image does not speak for are pruned.
- ``findings``: the map of the findings alone ("Pleural effusion."), as read by the claim rules.

A sharpened map is brought linearly to the range of the plain one, so that a threshold, a colour
or a share of the range means for it what it means for the plain one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medclip_debias.data.prompts import sets_of
from medclip_debias.errors import one_of
from medclip_debias.grounding.counterparts import Reader, without_words
from medclip_debias.grounding.settings import Sharpen
from medclip_debias.models.finite import finite

if TYPE_CHECKING:
    from medclip_debias.models.features import ImageFeatures
    from medclip_debias.models.interface import ImageTextModel

Floats = NDArray[np.floating[Any]]


class Sharpener:
    """The maps of some sentences, which are asked for by number, sharpened one way.

    ``prompts`` are the model's prompt sets (the packaged one where it has none); `texts` are the
    further sentences that are needed as vectors, each once.
    """

    def __init__(
        self,
        kind: Sharpen,
        sentences: Sequence[str],
        prompts: Mapping[str, Any],
        reader: Reader | None = None,
    ) -> None:
        self.kind: Sharpen = one_of(kind, get_args(Sharpen), "way to sharpen maps")
        companions = list(map(_companions(self.kind, prompts, reader), sentences))
        self.texts = list(dict.fromkeys(text for texts in companions for text in texts))
        place = {text: number for number, text in enumerate(self.texts)}
        self._companions = [[place[text] for text in texts] for texts in companions]

    def maps(
        self,
        model: ImageTextModel,
        features: ImageFeatures,
        numbers: Sequence[int],
        vectors: Tensor,
        further: Tensor,
    ) -> NDArray[np.float32]:
        """Maps of T sentences on each of B images ``[B, T, N]``."""
        wanted = sorted({place for number in numbers for place in self._companions[number]})
        column = {place: number for number, place in enumerate(wanted)}
        pruned = self.kind == "prune"
        with torch.inference_mode():
            plain = finite(model.region_scores(features, vectors), "maps")
            if not wanted:
                return plain
            others = finite(model.region_scores(features, further[wanted]), "maps")
            if pruned:
                totals = finite(model.score(features, vectors), "maps")
                rivals = finite(model.score(features, further[wanted]), "maps")
        result = plain.copy()
        for t, number in enumerate(numbers):
            columns = [column[place] for place in self._companions[number]]
            if not columns:
                continue
            beside = others[:, columns]
            if pruned:
                kept = rivals[:, columns] >= totals[:, t, None]
                sums = plain[:, t] + (beside * kept[..., None]).sum(axis=1)
                sharper = sums / (1 + kept.sum(axis=1))[:, None]
            elif self.kind == "findings":
                sharper = beside.mean(axis=1)
            else:
                sharper = plain[:, t] - beside.mean(axis=1)
            result[:, t] = to_range_of(plain[:, t], sharper)
        return result


def to_range_of(plain: Floats, sharpened: Floats) -> NDArray[np.float32]:
    """Maps ``[..., N]`` moved and stretched to the lowest and highest value of the plain ones.

    A map that is flat has nowhere to be stretched to: the plain one stands for it.
    """
    low, high = (f(plain, axis=-1, keepdims=True) for f in (np.min, np.max))
    a, b = (f(sharpened, axis=-1, keepdims=True) for f in (np.min, np.max))
    with np.errstate(divide="ignore", invalid="ignore"):
        moved = low + (sharpened - a) * ((high - low) / (b - a))
    return np.where(b > a, np.clip(moved, low, high), plain).astype(np.float32)


def _companions(
    kind: Sharpen, prompts: Mapping[str, Any], reader: Reader | None
) -> Callable[[str], Sequence[str]]:
    """A function from a sentence to those whose maps are needed beside its own."""
    if kind == "none":
        return lambda _: ()
    if kind == "prune":
        return without_words
    if kind == "redundant":
        shared = list(dict.fromkeys(text for one in sets_of(prompts) for text in one.texts))
        return lambda _: shared
    reads = reader or Reader()
    return (lambda text: (reads.negated(text),)) if kind == "contrast" else reads.named
