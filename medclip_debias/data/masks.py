"""Masks of phrases: COCO's run lengths, polygons, and the boxes of what is connected.

A mask is a list of run lengths, column by column, outside first; COCO writes the list as it is or
compressed to text (``maskApi.c`` of the COCO API: differences to the run before the last, five
bits a character). Coordinates are those of boxes: pixel ``(x, y)`` is the square from ``(x, y)``
to ``(x + 1, y + 1)``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.records import Box, Mask

_BITS, _MORE, _SIGN, _FIRST = 5, 0x20, 0x10, 48
_LONGEST = 7  # characters of a run: 35 bits

MAX_PIXELS = 400_000_000
"""Of a mask: twice what an image may have."""


def encode(pixels: NDArray[np.bool_]) -> Mask:
    """Return the mask of an array ``[H, W]``, true inside."""
    height, width = pixels.shape
    flat = pixels.T.ravel()
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    runs = np.diff([0, *changes.tolist(), flat.size]).tolist()
    return Mask(height, width, compress([0, *runs] if flat[0] else runs))


def decode(mask: Mask) -> NDArray[np.bool_]:
    """Return the pixels ``[H, W]`` of a mask, true inside.

    Raises:
        ValueError: as for `runs_of`.
    """
    return from_runs(runs_of(mask), mask.height, mask.width)


def from_runs(runs: Sequence[int], height: int, width: int) -> NDArray[np.bool_]:
    """Return the pixels ``[H, W]`` of run lengths, column by column, outside first.

    Raises:
        ValueError: there are more pixels than the image has, or a negative run; what the message
            says begins with a verb.
    """
    lengths = np.asarray(runs, dtype=np.int64)
    if (lengths < 0).any():
        raise ValueError("has a run of negative length")
    covered = int(lengths.sum())
    if covered > height * width:
        raise ValueError(f"has more pixels than its image of {width} x {height}")
    flat = np.zeros(height * width, dtype=np.bool_)
    flat[:covered] = np.repeat(np.arange(len(lengths)) % 2 == 1, lengths)
    return flat.reshape((height, width), order="F")


def runs_of(mask: Mask) -> list[int]:
    """Return the run lengths of a mask.

    Raises:
        ValueError: the text is damaged, or does not fit the size.
    """
    if not 0 < mask.height * mask.width <= MAX_PIXELS or mask.height < 0:
        raise ValueError("has no size, or one larger than any image")
    runs = uncompress(mask.counts)
    if any(run < 0 for run in runs):
        raise ValueError("has a run of negative length")
    if sum(runs) != mask.height * mask.width:
        raise ValueError(f"has another number of pixels than its size {mask.width} x {mask.height}")
    return runs


def compress(runs: Sequence[int]) -> str:
    """Return run lengths as COCO's text.

    >>> compress([6, 1, 40, 4, 5, 4, 5, 4, 21])
    '61X13mN000`0'
    """
    text = []
    for place, run in enumerate(runs):
        value = run - runs[place - 2] if place > 2 else run
        more = True
        while more:
            bits = value & 0x1F
            value >>= _BITS
            more = value != (-1 if bits & _SIGN else 0)
            text.append(chr((bits | _MORE if more else bits) + _FIRST))
    return "".join(text)


def uncompress(text: str) -> list[int]:
    """Return the run lengths that COCO's text stands for.

    Raises:
        ValueError: it is no such text; what the message says begins with a verb.
    """
    runs: list[int] = []
    value = shift = 0
    for character in text:
        bits = ord(character) - _FIRST
        if not 0 <= bits < 2 * _MORE:
            raise ValueError("holds a character that COCO's run lengths do not have")
        value |= (bits & 0x1F) << shift
        shift += _BITS
        if bits & _MORE:
            if shift >= _BITS * _LONGEST:
                raise ValueError("has a run that is longer than any image")
            continue
        if bits & _SIGN:
            value -= 1 << shift
        runs.append(value + runs[-2] if len(runs) > 2 else value)
        value = shift = 0
    if shift:
        raise ValueError("is cut off")
    return runs


def as_coco(mask: Mask) -> str:
    """Return the JSON text that COCO's own tools read: ``size`` (height, width) and ``counts``."""
    value = {"size": [mask.height, mask.width], "counts": mask.counts}
    return json.dumps(value, separators=(",", ":"))


def from_coco(value: object) -> Mask:
    """Return the mask of COCO's JSON, whose ``counts`` are text or a list; it is checked.

    Raises:
        ValueError: it is damaged; what the message says begins with a verb.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise ValueError("is not readable JSON") from None
    if not isinstance(value, dict):
        raise ValueError("is not 'size' and 'counts'")
    size, counts = value.get("size"), value.get("counts")
    if not (isinstance(size, list) and len(size) == 2 and all(type(n) is int for n in size)):
        raise ValueError("has no 'size' of height and width")
    if isinstance(counts, list) and all(type(n) is int for n in counts):
        counts = compress(counts)
    if not isinstance(counts, str):
        raise ValueError("has no 'counts'")
    mask = Mask(size[0], size[1], counts)
    runs_of(mask)
    return mask


def component_boxes(pixels: NDArray[np.bool_]) -> tuple[Box, ...]:
    """Return the box of each connected part of ``[H, W]``, from top to bottom, left to right.

    Pixels that touch at a corner are connected. Each box is the smallest that holds its part.
    """
    import cv2

    rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
    if not len(rows):
        return ()
    top, left = int(rows[0]), int(columns[0])
    part = pixels[top : rows[-1] + 1, left : columns[-1] + 1].astype(np.uint8)
    _, _, found, _ = cv2.connectedComponentsWithStats(part, connectivity=8)
    boxes = [(float(x + left), float(y + top), float(w), float(h)) for x, y, w, h, _ in found[1:]]
    return tuple(sorted(boxes, key=lambda box: (box[1], box[0], box[3], box[2])))


def polygon_pixels(points: Sequence[Sequence[float]], height: int, width: int) -> NDArray[np.bool_]:
    """Return ``[H, W]``, true where the centre of a pixel lies inside a closed polygon.

    Inside is what a ray crosses an odd number of edges to reach. The rectangle from ``(x1, y1)``
    to ``(x2, y2)`` in whole pixels covers ``(x2 - x1) * (y2 - y1)`` of them, as its box does.
    """
    corners = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    pixels = np.zeros((height, width), dtype=np.bool_)
    (left, top), (right, bottom) = np.floor(corners.min(axis=0)), np.ceil(corners.max(axis=0))
    x0, y0 = int(np.clip(left, 0, width)), int(np.clip(top, 0, height))
    x3, y3 = int(np.clip(right, 0, width)), int(np.clip(bottom, 0, height))
    # Upwards or downwards, an edge crosses the middles of the rows from its upper end on.
    ends = np.roll(corners, -1, axis=0)
    down = corners[:, 1] <= ends[:, 1]
    (x1, y1), (x2, y2) = (
        np.where(down[:, None], a, b).T for a, b in ((corners, ends), (ends, corners))
    )
    first = np.clip(np.ceil(y1 - 0.5), y0, y3).astype(np.int64)
    last = np.clip(np.ceil(y2 - 0.5), y0, y3).astype(np.int64)
    count = last - first
    edge = np.repeat(np.arange(len(count)), count)
    rows = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count) + first[edge]
    slope = (x2[edge] - x1[edge]) / (y2[edge] - y1[edge])
    crossing = np.ceil(x1[edge] + (rows + 0.5 - y1[edge]) * slope - 0.5)
    # What lies to the right of a crossing changes sides.
    flips = np.zeros((y3 - y0, x3 - x0 + 1), dtype=np.int32)
    np.add.at(flips, (rows - y0, np.clip(crossing, x0, x3).astype(np.int64) - x0), 1)
    pixels[y0:y3, x0:x3] = np.cumsum(flips[:, :-1], axis=1) % 2 == 1
    return pixels
