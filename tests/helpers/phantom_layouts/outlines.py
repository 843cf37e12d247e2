"""Findings as archives of boxes and masks have them: names of classes, pixels, whole boxes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from medclip_debias.phantom.catalogue import CATEGORY_OF_TYPE, CLASSES, INDEX
from medclip_debias.phantom.findings import Box
from phantom_layouts.content import ContentView

Named = dict[str, list[Box]]
"""Boxes by an archive's name of their finding."""


def named_boxes(view: ContentView, names: Mapping[str, str]) -> Named:
    """Return the boxes of an image by an archive's names.

    Args:
        view: rendered.
        names: of the archive, by MS-CXR's category; a finding of another one is left out.
    """
    found: Named = {}
    for finding, boxes in view.boxes.items():
        category = CATEGORY_OF_TYPE[CLASSES[INDEX[finding]].type]
        if category in names:
            found.setdefault(names[category], []).extend(boxes)
    return found


def apart(boxes: Iterable[Box]) -> list[Box]:
    """Return the boxes that touch none before them, so that each is a part of its own in a mask."""
    kept: list[Box] = []
    for box in boxes:
        if not any(_touch(box, other) for other in kept):
            kept.append(box)
    return kept


def outlined(boxes: Iterable[Box], height: int, width: int) -> NDArray[np.bool_]:
    """Return ``[H, W]``, true inside boxes of whole pixels, but for their corners.

    A box of fewer than three pixels a side keeps its corners; the smallest box around each part
    is that box in either case.
    """
    pixels = np.zeros((height, width), dtype=np.bool_)
    for box in boxes:
        left, top, wide, high = (int(value) for value in box)
        part = np.ones((high, wide), dtype=np.bool_)
        if high > 2 and wide > 2:
            part[np.ix_((0, -1), (0, -1))] = False
        pixels[top : top + high, left : left + wide] |= part
    return pixels


def _touch(one: Box, other: Box) -> bool:
    return (
        one[0] <= other[0] + other[2]
        and other[0] <= one[0] + one[2]
        and one[1] <= other[1] + other[3]
        and other[1] <= one[1] + one[3]
    )
