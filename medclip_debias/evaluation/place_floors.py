"""What a map gets that knows where a finding mostly is, and nothing of the image: two floors.

A contrast-to-noise ratio without its sign, and even a hit rate above that of a random pixel, can be
had from the anatomy alone: hearts and effusions are always in one place. So each metric of a
sentence's map stands beside the same metric with the boxes of *other* images of its class, and
beside that of the mean of those boxes as a map (the place prior), both without the own patient.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.evaluation.phrase_selection import Phrase
from medclip_debias.grounding.boxes import as_boxes
from medclip_debias.models.region_grid import RegionGrid

Floats = NDArray[np.float64]
OTHERS = 5
"""Other images whose boxes are laid on an image."""


def others_of(phrases: Sequence[Phrase]) -> list[list[int]]:
    """For each phrase the places of the phrases of its class of other patients.

    In an order that is the same for every model: one permutation of each class, read on from the
    phrase's own place.
    """
    members: dict[str, list[int]] = {}
    for place, phrase in enumerate(phrases):
        members.setdefault(phrase.category, []).append(place)
    found: list[list[int]] = [[] for _ in phrases]
    for places in members.values():
        order = np.random.default_rng(0).permutation(places).tolist()
        for number, place in enumerate(order):
            own = phrases[place].patient
            others = [*order[number + 1 :], *order[:number]]
            found[place] = [other for other in others if phrases[other].patient != own]
    return found


def moved_boxes(
    boxes: Sequence[Sequence[float]], own: SquareGeometry, to: SquareGeometry
) -> Floats:
    """Boxes ``[K, 4]`` of one image at the same shares of another's width and height."""
    across, down = to.width / own.width, to.height / own.height
    return np.asarray(as_boxes(boxes) * [across, down, across, down], dtype=np.float64)


def place_prior(
    others: Sequence[Phrase], geometry: SquareGeometry, grid: RegionGrid
) -> NDArray[np.float64]:
    """Share of ``others`` whose boxes hold the centre of each region ``[rows, columns]``.

    Args:
        others: phrases of other images; at least one.
        geometry: of the image whose regions they are.
        grid: the regions.
    """
    centres = geometry.to_original(grid.centres())
    x, y = centres[0, :, 0] / geometry.width, centres[:, 0, 1] / geometry.height
    covered = np.zeros(grid.shape)
    for other in others:
        sides = [other.geometry.width, other.geometry.height] * 2
        left, top, width, height = (as_boxes(other.boxes) / sides).T[:, :, None]
        rows = (y >= top) & (y < top + height)
        columns = (x >= left) & (x < left + width)
        covered += (rows[:, :, None] & columns[:, None, :]).any(axis=0)
    return covered / len(others)
