"""From a radiograph to one row of the prepared set: clip, stretch, pad to a square, resize."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from medclip_debias.config import Fit, PrepareSettings, Resample
from medclip_debias.data.geometry import SquareGeometry
from medclip_debias.data.images.radiograph import Radiograph


def prepare_image(image: Radiograph, settings: PrepareSettings) -> NDArray[np.uint8]:
    """Return the ``size x size`` uint8 image: clip, stretch, equalise, pad (or cut), resize."""
    return to_square(image.stretched(settings), settings.size, settings.fit, settings.resample)


def to_square(
    grey: NDArray[np.uint8], size: int, fit: Fit = "pad", resample: Resample = "area"
) -> NDArray[np.uint8]:
    """Pad with 0, or cut, to a centred square, or take the whole, and resize: `SquareGeometry`."""
    import cv2

    height, width = grey.shape
    place = SquareGeometry(height, width, size, size, fit)
    left, top = max(-place.pad_x, 0), max(-place.pad_y, 0)
    across, down = place.sides
    if fit == "pad":
        square = np.zeros((down, across), dtype=np.uint8)
        square[place.pad_y : place.pad_y + height, place.pad_x : place.pad_x + width] = grey
    else:
        square = grey[top : top + down, left : left + across]
    if resample == "area":
        method = cv2.INTER_AREA if max(across, down) > size else cv2.INTER_LINEAR
        return np.asarray(cv2.resize(square, (size, size), interpolation=method), dtype=np.uint8)
    from PIL import Image

    # Pillow's box keeps the filter's view of the pixels just outside the square, as when the
    # whole image is resized first and cut afterwards.
    whole, box = (square, (0, 0)) if fit == "pad" else (grey, (left, top))
    resized = Image.fromarray(whole).resize(
        (size, size),
        Image.Resampling[resample.upper()],
        box=(*box, box[0] + across, box[1] + down),
    )
    return np.array(resized, dtype=np.uint8)  # a copy: Pillow's own memory is read-only
