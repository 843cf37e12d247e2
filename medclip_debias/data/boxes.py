"""Boxes of a phrase on the image at hand: one verdict for prepare, evaluate and ground.

A box without area, or wholly outside its image, is left aside. Boxes that were annotated on an
image of another size are scaled; where the ratio of its sides is another one, that image was cut,
padded or is another one, and nothing says where a box would lie: all boxes are left aside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from medclip_debias.data.records import RELATIVE, Box, PhraseRecord
from medclip_debias.errors import UserError

SHAPE_TOLERANCE = 0.01
"""How far the sides' ratio of an annotated image may differ from that of the image at hand."""
_MOST_OUTSIDE = 0.1
_FEW = 3


class Fitted(NamedTuple):
    """Boxes of a phrase inside its image, and what was done to them.

    Attributes:
        boxes: lists of x, y, width, height in pixels of the image.
        flat: boxes without area, left aside.
        outside: boxes wholly outside the image, left aside.
        clipped: boxes that reached over the image's edge, and were cut there.
        scaled: the phrase was annotated at another size.
        other_shape: at another ratio of the sides, so that all its boxes are left aside.
    """

    boxes: list[list[float]]
    flat: int = 0
    outside: int = 0
    clipped: int = 0
    scaled: bool = False
    other_shape: bool = False


def fit_boxes(
    boxes: Iterable[Box], annotated: tuple[int, int] | None, actual: tuple[int, int]
) -> Fitted:
    """Bring the boxes of a phrase into the image at hand.

    Args:
        boxes: in pixels of the annotated image.
        annotated: its width and height; ``None`` means that of the actual image, `RELATIVE` that
            boxes are fractions of its sides.
        actual: width and height of the image at hand.
    """
    in_pixels = annotated is not None and annotated != RELATIVE
    if annotated is not None and in_pixels and not same_shape(annotated, actual):
        return Fitted([], other_shape=True)
    (width, height), size = actual, annotated or actual
    scale_x, scale_y = width / size[0], height / size[1]
    found: list[list[float]] = []
    flat = outside = clipped = 0
    for x, y, w, h in boxes:
        if not (w > 0 and h > 0):
            flat += 1
            continue
        left, right = (min(max(value * scale_x, 0.0), width) for value in (x, x + w))
        top, bottom = (min(max(value * scale_y, 0.0), height) for value in (y, y + h))
        if right > left and bottom > top:
            found.append([left, top, right - left, bottom - top])
            clipped += x < 0 or y < 0 or x + w > size[0] + 1e-6 or y + h > size[1] + 1e-6
        else:
            outside += 1
    return Fitted(found, flat, outside, clipped, in_pixels and annotated != actual)


def check_sizes(fitted: Iterable[tuple[PhraseRecord, Fitted]]) -> None:
    """Stop where boxes show that their images are not as large as those that were annotated.

    Where nothing says how large these were, one box in ten (and three) outside its image says that
    it was larger, and that the boxes inside lie at wrong places, too.

    Raises:
        UserError: so many boxes of images without ``annotated_size`` lie outside.
    """
    unstated = [(p, boxes) for p, boxes in fitted if p.annotated_size is None]
    outside = sum(boxes.outside for _, boxes in unstated)
    listed = sum(len(phrase.boxes) for phrase, _ in unstated)
    if outside >= max(_FEW, _MOST_OUTSIDE * listed):
        raise UserError(
            f"{outside} of {listed} boxes lie outside their images, so they were drawn on larger"
            " images, and nothing says how large those were; give the images that were annotated,"
            " or their width and height beside the boxes."
        )


def side_of(boxes: Iterable[Box], width: float) -> Literal["left", "right"] | None:
    """The side of the patient on which all boxes lie, where they lie in one half of the image.

    Of a frontal radiograph as it is read: the patient's right is on the image's left.

    >>> side_of([(1, 0, 3, 3), (0, 5, 2, 2)], width=10), side_of([(4, 0, 3, 3)], width=10)
    ('right', None)
    """
    ends = [(x, x + w) for x, _, w, _ in boxes]
    if ends and all(right <= width / 2 for _, right in ends):
        return "right"
    return "left" if ends and all(left >= width / 2 for left, _ in ends) else None


def same_shape(annotated: tuple[int, int], actual: tuple[int, int]) -> bool:
    """Tell whether one size is the other one scaled, up to the rounding of a side to pixels.

    >>> same_shape((2544, 3056), (426, 512)), same_shape((2544, 3056), (512, 512))
    (True, False)
    """
    (a, b), (c, d) = sorted((annotated, actual))
    if abs(a * d / (b * c) - 1) <= SHAPE_TOLERANCE:
        return True
    # A pixel, to which the sides of the smaller one were rounded, is more than 1% of a thumbnail.
    return abs(a - c * b / d) <= 1 or abs(b - d * a / c) <= 1
