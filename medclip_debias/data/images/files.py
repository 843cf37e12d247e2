"""From the bytes of an image file to a `Radiograph`.

A file that cannot be read whole is refused: half an image never becomes a training image.
"""

from __future__ import annotations

import gzip
import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import IO, cast

from medclip_debias.config import WindowPolicy
from medclip_debias.data.images.dicom import read_dicom
from medclip_debias.data.images.elements import header_start
from medclip_debias.data.images.radiograph import TOO_LARGE, Radiograph
from medclip_debias.data.images.raster import is_raster, read_raster
from medclip_debias.errors import UserError
from medclip_debias.files import open_guarded

MAX_BYTES = 1 << 30
"""Of a file, unpacked; a chest radiograph of MAX_PIXELS in 16 bit needs 400 MB."""


def read_radiograph(path: Path | str, window: WindowPolicy = "first") -> Radiograph:
    """Read one radiograph.

    DICOM: modality LUT, then VOI LUT or window if present, then MONOCHROME1 inversion. Colour and
    palette images (usually screen captures) and images of other devices (CT, MR, ultrasound ...)
    are errors. Padding is not part of the picture. JPG and PNG: rotated by their EXIF data;
    colour is converted to luminance (ITU-R 601-2; grey stored as colour keeps its values), alpha
    is dropped.

    Args:
        path: ``.dcm``, ``.dcm.gz``, ``.jpg`` or ``.png``; the content decides, not the name.
        window: display window of a DICOM file to apply, ``first`` or ``none``; for a model, that
            of its ``preprocessing.prepare.window``.

    Raises:
        UserError: the file is missing, truncated, too large, or not a single grey image.
    """
    path = Path(path)
    return radiograph_of(_read_bytes(path), path, window)


def radiograph_of(content: bytes, path: Path, window: WindowPolicy = "first") -> Radiograph:
    """`read_radiograph` of a file's bytes.

    Args:
        content: the bytes.
        path: what messages call the file.
        window: as there.

    Raises:
        UserError: as there.
    """
    if header_start(content) is not None:
        image = replace(read_dicom(path, content, window), window=window)
    elif is_raster(content):
        image = Radiograph.of(read_raster(path, content))
    else:
        raise UserError(f"{path}: this is not a DICOM, JPG or PNG image; give one of these.")
    check_visible(path, image)
    return image


def check_visible(path: Path, image: Radiograph) -> None:
    """Refuse an image on which nothing can be seen.

    Raises:
        UserError: padding alone, values that are no numbers, or a single grey value.
    """
    if not image.counts.any():
        raise UserError(f"{path}: contains only padding.")
    low, high = image.range
    if not math.isfinite(high - low):
        raise UserError(f"{path}: holds values that are not numbers; export the image again.")
    if low == high:
        # Several stored values that are shown as one: the picture is there, its window hides it.
        hidden = image.window == "first" and (image.counts > 0).sum() > 1
        how = "; its display window makes them so: prepare with window: none" if hidden else ""
        raise UserError(f"{path}: all its pixels have a single grey value{how}.")


def _read_bytes(path: Path) -> bytes:
    try:
        with open_guarded(path, "check the path", limit=MAX_BYTES) as file:
            packed = path.suffix.lower() == ".gz"
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
            content = stream.read(MAX_BYTES + 1)
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
