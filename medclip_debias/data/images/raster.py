"""JPG and PNG files, with Pillow's decoders."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.data.images.radiograph import (
    MAX_COLOURED,
    TOO_LARGE,
    check_scans,
    check_size,
)
from medclip_debias.errors import UserError


def is_raster(content: bytes) -> bool:
    """Tell whether a file is JPG or PNG, by its first bytes."""
    return content.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"))


def read_raster(path: Path, content: bytes) -> NDArray[Any]:
    """Read the pixels of a JPG or PNG file as grey values ``[H, W]``; ``path`` is for messages."""
    from PIL import Image

    damaged = f"{path}: the image is truncated or damaged; copy it again."
    try:
        with _own_size_limit(), Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            check_size(path, image.height, image.width)
            if image.format == "PNG" and getattr(image, "n_frames", 1) > 1:
                raise UserError(f"{path}: is an animated image; give one file per radiograph.")
            if image.mode == "1":
                raise UserError(
                    f"{path}: has only black and white pixels (one bit each); leave it out."
                )
            if image.format == "JPEG":
                check_scans(path, content, image.height, image.width)
            _check_colour(path, image, content)
            image.load()
            if image.format == "PNG" and _depth_and_colour(content) in _DEEP_COLOURS:
                image = _deep_luminance(content, image)
            return grey_values(image)
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(f"{path}: {TOO_LARGE}") from error
    # Pillow's decoders raise almost anything on damaged input, also struct.error, SyntaxError.
    except Exception as error:
        raise UserError(damaged) from error


def _check_colour(path: Path, image: Any, content: bytes) -> None:
    if image.mode in ("L", "I", "F") or image.mode.startswith("I;16"):
        return
    bits = 16 if image.format == "PNG" and _depth_and_colour(content)[0] == 16 else 8
    most = MAX_COLOURED[bits]
    if image.height * image.width > most:
        raise UserError(
            f"{path}: is a colour image of {image.width:,} x {image.height:,} pixels in {bits}"
            f" bits, more than {most // 1_000_000} megapixels; save it as a grey image."
        )


def grey_values(image: Any) -> NDArray[Any]:
    """Grey values ``[H, W]`` of a Pillow image, turned as its EXIF data says.

    Colour counts by its luminance (ITU-R 601-2), alpha is dropped, whatever has more than 8 bits
    a pixel keeps them.
    """
    from PIL import ImageOps

    turned = ImageOps.exif_transpose(image)
    if turned.mode in ("I;16", "I;16B", "I;16L", "I", "F"):  # 16-bit PNG, and float arrays
        return np.asarray(turned)
    return np.asarray(_opaque(turned).convert("L"))


def luminance(colours: NDArray[Any]) -> NDArray[Any]:
    """Pillow's luminance (ITU-R 601-2) of red, green, blue: ``[H, W, 3]`` to ``[H, W]``.

    Integers up to 16 bits keep their type, and grey stored as colour its very values.
    """
    red, green, blue = np.moveaxis(colours[..., :3], -1, 0)
    if colours.dtype.kind == "f":
        return np.asarray(0.299 * red + 0.587 * green + 0.114 * blue)
    red, green, blue = (part.astype(np.uint32) for part in (red, green, blue))
    grey = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
    return np.asarray(grey.astype(colours.dtype))


_DEEP_COLOURS = ((16, 2), (16, 4), (16, 6))
"""PNG's 16-bit forms of which Pillow reads 8 bits: colour, grey with alpha, colour with alpha."""


def _depth_and_colour(png: bytes) -> tuple[int, int]:
    return png[24], png[25]  # of IHDR, which stands first in every PNG


def _deep_luminance(content: bytes, image: Any) -> Any:
    """The luminance of a 16-bit colour PNG in its 16 bits, with Pillow's weights.

    ``image`` is Pillow's reading of it, from which come orientation and the proof that it is whole.
    """
    import cv2
    from PIL import Image

    whole = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    if whole is None or whole.dtype != np.uint16 or whole.shape[:2] != (image.height, image.width):
        raise ValueError("not the picture that Pillow read")
    deep = Image.fromarray(luminance(whole[..., 2::-1]))  # OpenCV has blue first
    deep.info = dict(image.info)
    deep.getexif().update(image.getexif())
    return deep


def _opaque(image: Any) -> Any:
    """Drop alpha: the colours under it count, whatever the transparency."""
    if image.mode == "LA":
        return image.getchannel("L")
    if image.mode in ("P", "PA", "RGBA", "RGBa", "La"):
        return image.convert("RGBA").convert("RGB")
    return image


@contextmanager
def _own_size_limit() -> Iterator[None]:
    """Let `check_size` alone decide on size, with its own sentence, before any decoding."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit
