"""From an image file to one row of the prepared set.

`read_radiograph` reads DICOM, JPG or PNG; `prepare_image` clips, stretches, pads to a square and
resizes. A file that cannot be read whole is refused: half an image never becomes a training
image.
"""

from __future__ import annotations

import gzip
import io
import math
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.config import Fit, PrepareSettings, Resample, WindowPolicy
from medclip_debias.data.dicom import header_start, read_dicom
from medclip_debias.data.radiograph import TOO_LARGE, Radiograph, check_size
from medclip_debias.errors import UserError

MAX_BYTES = 1 << 30
"""Of a file, unpacked; a chest radiograph of MAX_PIXELS in 16 bit needs 400 MB."""


def read_radiograph(path: Path, window: WindowPolicy = "first") -> Radiograph:
    """Read one radiograph.

    DICOM: modality LUT, then VOI LUT or window when present, then MONOCHROME1 inversion; a
    colour or palette DICOM is a screen capture more often than a radiograph, and is refused,
    as are images of other devices (CT, MR, ultrasound ...). Padding is no part of the picture.
    JPG and PNG: grey, turned as their EXIF data says; colour counts by its luminance (ITU-R
    601-2: grey stored as colour keeps its very values, in 8 and in 16 bit), alpha is dropped.

    Args:
        path: ``.dcm``, ``.dcm.gz``, ``.jpg`` or ``.png``; the content decides, not the name.
        window: which display window of a DICOM file is applied, ``first`` or ``none``.

    Raises:
        UserError: the file is missing, truncated, absurdly large, or no single grey image.
    """
    path = Path(path)
    content = _read_bytes(path)
    if header_start(content) is not None:
        image = read_dicom(path, content, window, MAX_BYTES)
    elif content.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")):
        image = Radiograph.of(_read_raster(path, content))
    else:
        raise UserError(f"{path}: this is not a DICOM, JPG or PNG image; give one of these.")
    if not image.counts.any():
        raise UserError(f"{path}: holds padding alone, so nothing can be seen on it.")
    low, high = image.range
    if not math.isfinite(high - low):
        raise UserError(f"{path}: holds values that are not numbers; export the image again.")
    if low == high:
        raise UserError(f"{path}: holds a single grey value, so nothing can be seen on it.")
    return image


def read_image(path: Path, window: WindowPolicy = "first") -> NDArray[np.float32]:
    """`read_radiograph` as float32 ``[H, W]`` in display polarity (high = bright)."""
    return read_radiograph(path, window).display()


def prepare_image(image: Radiograph | NDArray[Any], settings: PrepareSettings) -> NDArray[np.uint8]:
    """Return the ``size x size`` uint8 image: clip, stretch, equalise, pad with 0 (or cut), resize.

    Args:
        image: what `read_radiograph` gave, or a 2-D array in display polarity.
        settings: how.

    Raises:
        UserError: the image holds a single grey value (between the clipping percentiles).
    """
    return to_square(stretch(image, settings), settings.size, settings.fit, settings.resample)


def stretch(image: Radiograph | NDArray[Any], settings: PrepareSettings) -> NDArray[np.uint8]:
    """Clip at the percentiles ``settings.clip``, stretch to 0..255, equalise if asked."""
    radiograph = image if isinstance(image, Radiograph) else Radiograph.of(image)
    return radiograph.stretched(settings)


def to_square(
    grey: NDArray[np.uint8], size: int, fit: Fit = "pad", resample: Resample = "area"
) -> NDArray[np.uint8]:
    """Pad with 0 (or cut) to a centred square and resize it; the geometry of `SquareGeometry`."""
    import cv2

    from medclip_debias.data.geometry import SquareGeometry

    height, width = grey.shape
    place = SquareGeometry(height, width, size, size, fit)
    left, top = max(-place.pad_x, 0), max(-place.pad_y, 0)
    if fit == "pad":
        square = np.zeros((place.side, place.side), dtype=np.uint8)
        square[place.pad_y : place.pad_y + height, place.pad_x : place.pad_x + width] = grey
    else:
        square = grey[top : top + place.side, left : left + place.side]
    if resample == "area":
        method = cv2.INTER_AREA if place.side > size else cv2.INTER_LINEAR
        return np.asarray(cv2.resize(square, (size, size), interpolation=method), dtype=np.uint8)
    from PIL import Image

    # Pillow's box keeps the filter's view of the pixels just outside the square, as when the
    # whole image is resized first and cut afterwards.
    whole, box = (square, (0, 0)) if fit == "pad" else (grey, (left, top))
    resized = Image.fromarray(whole).resize(
        (size, size),
        Image.Resampling[resample.upper()],
        box=(*box, box[0] + place.side, box[1] + place.side),
    )
    return np.array(resized, dtype=np.uint8)  # a copy: Pillow's own memory is read-only


# --------------------------------------------------------------------------------- bytes


def _read_bytes(path: Path) -> bytes:
    try:
        kind = path.stat()
        if stat.S_ISDIR(kind.st_mode):
            raise UserError(f"{path}: is a folder; give an image file.")
        if not stat.S_ISREG(kind.st_mode):
            raise UserError(f"{path}: is a device or pipe; give an image file.")
        if kind.st_size > MAX_BYTES:
            raise UserError(f"{path}: {TOO_LARGE}")
        if path.suffix.lower() == ".gz":
            with gzip.open(path) as packed:
                content = packed.read(MAX_BYTES + 1)
        else:
            content = path.read_bytes()
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; check the path.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path}: the compressed file is truncated or damaged; copy it again."
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({type(error).__name__}).") from error
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}: {TOO_LARGE}")
    if not content:
        raise UserError(f"{path}: the file is empty; copy it again.")
    return content


# ---------------------------------------------------------------------------- JPG and PNG


def _read_raster(path: Path, content: bytes) -> NDArray[Any]:
    from PIL import Image, ImageOps

    damaged = f"{path}: the image is truncated or damaged; copy it again."
    try:
        with _own_size_limit(), Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            check_size(path, image.height, image.width)
            if image.format == "PNG" and getattr(image, "n_frames", 1) > 1:
                raise UserError(f"{path}: is a moving picture; give one file per radiograph.")
            if image.mode == "1":
                raise UserError(
                    f"{path}: holds black and white alone, one bit a pixel; leave it out."
                )
            image.load()
            if image.format == "PNG" and _depth_and_colour(content) in _DEEP_COLOURS:
                image = _deep_luminance(content, image)
            turned: Image.Image = ImageOps.exif_transpose(image)
            if turned.mode in ("I;16", "I;16B", "I;16L", "I"):  # 16-bit PNG
                return np.asarray(turned)
            return np.asarray(_opaque(turned).convert("L"))
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(f"{path}: {TOO_LARGE}") from error
    # Pillow's decoders raise almost anything on damaged input, also struct.error, SyntaxError.
    except Exception as error:
        raise UserError(damaged) from error


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
    blue, green, red = np.moveaxis(whole[..., :3].astype(np.uint32), -1, 0)
    grey = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16
    deep = Image.fromarray(grey.astype(np.uint16))
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
