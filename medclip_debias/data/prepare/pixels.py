"""Image files to rows of pixels, a chunk at a time."""

from __future__ import annotations

from typing import Any

from medclip_debias.config import PrepareSettings
from medclip_debias.data.images import prepare_image, read_radiograph
from medclip_debias.data.layout import short_hash
from medclip_debias.data.prepare.chunks import Job, Values
from medclip_debias.errors import UserError, without_patients

_CHUNK_BYTES = 8 << 20
_CHUNK_IMAGES = 32


def images_of_a_chunk(size: int) -> int:
    """Return how many images of ``size`` pixels a side make a chunk."""
    return max(1, min(_CHUNK_IMAGES, _CHUNK_BYTES // size**2))


def read_rows(settings: PrepareSettings, jobs: list[Job]) -> tuple[Values, bytes]:
    """Read the image files of a chunk.

    Returns:
        For each file ``row``, ``height``, ``width``, ``hash`` of the pixels and what was
        ``mended``, if anything, or the ``reason`` why there is no row; and the pixels.
    """
    import cv2

    cv2.setNumThreads(1)  # the processes are the parallel part
    values: Values = {}
    rows: list[bytes] = []
    for key, path in jobs:
        try:
            image = read_radiograph(path, settings.window)
            pixels = prepare_image(image, settings).tobytes()
        except UserError as error:
            reason, place = str(error), without_patients(str(path))
            values[key] = {"reason": reason if place in reason else f"{place}: {reason}"}
            continue
        hash_of_row = short_hash(pixels)
        values[key] = row_value(len(rows), *image.shape, hash_of_row, image.mended)
        rows.append(pixels)
    return values, b"".join(rows)


def row_value(row: int, height: int, width: int, pixels: str, mended: str) -> dict[str, Any]:
    """Return what a chunk holds of an image; ``pixels`` is their hash."""
    value = {"row": row, "height": height, "width": width, "hash": pixels}
    return value | {"mended": mended} if mended else value
