"""From an image file to one row of the prepared set.

`read_image` gives grey values in display polarity (high = bright) from DICOM, JPG or PNG;
`prepare_image` clips, stretches, pads to a square and resizes. A file that cannot be read whole
is refused: half an image never becomes a training image.
"""

from __future__ import annotations

import gzip
import io
import logging
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.config import PrepareSettings
from medclip_debias.errors import UserError

MAX_SIDE = 20_000
MAX_PIXELS = 200_000_000
_MAX_BYTES = 1 << 30  # a chest radiograph of MAX_PIXELS in 16 bit needs 400 MB
_TOO_LARGE = (
    f"is larger than {MAX_SIDE:,} pixels a side or {MAX_PIXELS // 1_000_000} megapixels;"
    " that is no radiograph, remove it or make it smaller."
)


def read_image(path: Path) -> NDArray[np.float32]:
    """Read one radiograph as a 2-D float32 array in display polarity (high = bright).

    DICOM: modality LUT, then VOI LUT or window when present, then MONOCHROME1 inversion.
    JPG and PNG: grey (colour is converted, alpha dropped), turned as their EXIF data says.

    Args:
        path: ``.dcm``, ``.dcm.gz``, ``.jpg`` or ``.png``; the content decides, not the name.

    Raises:
        UserError: the file is missing, truncated, absurdly large, or no single grey image.
    """
    path = Path(path)
    content = _read_bytes(path)
    if content[128:132] == b"DICM":
        array = _read_dicom(path, content)
    elif content.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")):
        array = _read_raster(path, content)
    else:
        raise UserError(f"{path}: this is not a DICOM, JPG or PNG image; give one of these.")
    if not np.isfinite(array).all():
        raise UserError(f"{path}: holds values that are not numbers; export the image again.")
    if array.min() == array.max():
        raise UserError(f"{path}: holds a single grey value, so nothing can be seen on it.")
    return array


def prepare_image(array: NDArray[Any], settings: PrepareSettings) -> NDArray[np.uint8]:
    """Return the ``size x size`` uint8 image: clip, stretch, equalise, pad with 0, resize.

    Raises:
        UserError: the image holds a single grey value (between the clipping percentiles).
    """
    return to_square(stretch(array, settings), settings.size)


def stretch(array: NDArray[Any], settings: PrepareSettings) -> NDArray[np.uint8]:
    """Clip at the percentiles ``settings.clip``, stretch to 0..255, equalise if asked."""
    import cv2

    low, high = _percentiles(array, settings.clip)
    if not low < high:
        raise UserError(
            "the image holds a single grey value between its clipping percentiles;"
            " nothing can be seen on it."
        )
    values = np.clip(array, low, high).astype(np.float32, copy=False)
    grey = np.rint((values - low) * (255.0 / (high - low))).astype(np.uint8)
    return np.asarray(cv2.equalizeHist(grey)) if settings.equalize else grey


def to_square(grey: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Pad with 0 to a centred square and resize it; the geometry of `SquareGeometry`."""
    import cv2

    from medclip_debias.data.geometry import SquareGeometry

    height, width = grey.shape
    place = SquareGeometry(height, width, size, size)
    square = np.zeros((place.side, place.side), dtype=np.uint8)
    square[place.pad_y : place.pad_y + height, place.pad_x : place.pad_x + width] = grey
    method = cv2.INTER_AREA if place.side > size else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(square, (size, size), interpolation=method), dtype=np.uint8)


def _percentiles(array: NDArray[Any], clip: tuple[float, float]) -> tuple[float, float]:
    """`numpy.percentile`, from a histogram where values are whole: ten times as fast."""
    minimum, maximum = float(array.min()), float(array.max())
    if clip == (0.0, 100.0):
        return minimum, maximum
    whole = None
    if minimum >= 0 and maximum < 65536:
        whole = array.astype(np.uint16)
    if whole is None or not np.array_equal(whole, array):
        low, high = np.percentile(array, clip)
        return float(low), float(high)
    below = np.cumsum(np.bincount(whole.ravel()))
    low, high = (_ranked(below, percent) for percent in clip)
    return low, high


def _ranked(below: NDArray[np.intp], percent: float) -> float:
    """Percentile with linear interpolation, from counts ``below[v]`` of values up to ``v``."""
    rank = percent / 100 * (int(below[-1]) - 1)
    left = int(rank)
    first, second = np.searchsorted(below, [left + 1, min(left + 2, int(below[-1]))])
    return float(first + (rank - left) * (second - first))


# --------------------------------------------------------------------------------- bytes


def _read_bytes(path: Path) -> bytes:
    try:
        if path.suffix.lower() == ".gz":
            with gzip.open(path) as packed:
                content = packed.read(_MAX_BYTES + 1)
        else:
            with path.open("rb") as file:
                content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such file; check the path.") from None
    except IsADirectoryError:
        raise UserError(f"{path}: is a folder; give an image file.") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(
            f"{path}: the compressed file is truncated or damaged; copy it again."
        ) from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({type(error).__name__}).") from error
    if len(content) > _MAX_BYTES:
        raise UserError(f"{path}: {_TOO_LARGE}")
    if not content:
        raise UserError(f"{path}: the file is empty; copy it again.")
    return content


def _check_size(path: Path, height: int, width: int) -> None:
    if height < 1 or width < 1:
        raise UserError(f"{path}: the image has no rows or no columns; copy it again.")
    if max(height, width) > MAX_SIDE or height * width > MAX_PIXELS:
        raise UserError(f"{path}: {_TOO_LARGE}")


# ---------------------------------------------------------------------------- JPG and PNG


def _read_raster(path: Path, content: bytes) -> NDArray[np.float32]:
    from PIL import Image, ImageOps

    damaged = f"{path}: the image is truncated or damaged; copy it again."
    try:
        with _own_size_limit(), Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            _check_size(path, image.height, image.width)
            image.load()
            turned: Image.Image = ImageOps.exif_transpose(image)
            if turned.mode in ("I;16", "I;16B", "I;16L", "I"):  # 16-bit PNG
                return np.asarray(turned).astype(np.float32)
            return np.asarray(_opaque(turned).convert("L")).astype(np.float32)
    except UserError:
        raise
    except MemoryError as error:
        raise UserError(f"{path}: {_TOO_LARGE}") from error
    # Pillow's decoders raise almost anything on damaged input, also struct.error, SyntaxError.
    except Exception as error:
        raise UserError(damaged) from error


def _opaque(image: Any) -> Any:
    """Drop alpha: the colours under it count, whatever the transparency."""
    if image.mode == "LA":
        return image.getchannel("L")
    if image.mode in ("P", "PA", "RGBA", "RGBa", "La"):
        return image.convert("RGBA").convert("RGB")
    return image


@contextmanager
def _own_size_limit() -> Iterator[None]:
    """Let `_check_size` alone decide on size, with its own sentence, before any decoding."""
    from PIL import Image

    limit = Image.MAX_IMAGE_PIXELS
    Image.MAX_IMAGE_PIXELS = None
    try:
        yield
    finally:
        Image.MAX_IMAGE_PIXELS = limit


# --------------------------------------------------------------------------------- DICOM


def _read_dicom(path: Path, content: bytes) -> NDArray[np.float32]:
    import pydicom

    # pydicom warns about header values (sometimes quoting them) in files that read well.
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            dataset = pydicom.dcmread(io.BytesIO(content))
            _check_dicom(path, dataset)
            array = _pixels(path, dataset)
            return _display_values(path, dataset, array)
        except UserError:
            raise
        # A damaged header surfaces as any of a dozen exception types, some quoting values.
        except Exception as error:
            raise UserError(
                f"{path}: the DICOM file is truncated or damaged"
                f" ({type(error).__name__}); copy it again."
            ) from error


def _check_dicom(path: Path, dataset: Any) -> None:
    """Refuse what is not one grey image, before any pixel is decoded."""
    if "PixelData" not in dataset:
        raise UserError(f"{path}: the DICOM file holds no pixels; it may be truncated.")
    if int(dataset.get("NumberOfFrames") or 1) > 1:
        raise UserError(
            f"{path}: the DICOM file holds several frames; give one file per radiograph."
        )
    photometric = str(dataset.get("PhotometricInterpretation") or "").strip().upper()
    if photometric == "PALETTE COLOR":
        raise UserError(f"{path}: is a palette image; export it as a grey image.")
    if int(dataset.get("SamplesPerPixel") or 1) != 1 or (
        photometric not in ("MONOCHROME1", "MONOCHROME2", "")
    ):
        raise UserError(f"{path}: is a colour image; export it as a grey image.")
    if not photometric:
        raise UserError(
            f"{path}: does not say whether low values are bright or dark"
            " (PhotometricInterpretation is missing); export it again."
        )
    _check_size(path, int(dataset.get("Rows") or 0), int(dataset.get("Columns") or 0))


def _pixels(path: Path, dataset: Any) -> NDArray[Any]:
    syntax = dataset.file_meta.TransferSyntaxUID
    try:
        array = np.asarray(dataset.pixel_array)
    except (NotImplementedError, RuntimeError) as error:
        if "missing dependencies" in str(error) or "no pixel data decoder" in str(error).lower():
            raise UserError(
                f"{path}: is compressed as '{syntax.name}', which needs another decoder;"
                " install pylibjpeg with its plugins."
            ) from error
        raise
    if array.shape != (int(dataset.Rows), int(dataset.Columns)):
        raise UserError(f"{path}: the pixels do not fit the rows and columns; export it again.")
    return array


def _display_values(path: Path, dataset: Any, array: NDArray[Any]) -> NDArray[np.float32]:
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    array = apply_modality_lut(array, dataset)
    if _has_window(dataset):
        try:
            array = apply_voi_lut(array, dataset)
        except Exception as error:
            raise UserError(
                f"{path}: its display window cannot be applied; correct WindowCenter and"
                " WindowWidth or remove them."
            ) from error
    array = np.asarray(array, dtype=np.float32)
    if str(dataset.PhotometricInterpretation).strip().upper() == "MONOCHROME1":
        array = (array.max() + array.min()) - array
    return array


def _has_window(dataset: Any) -> bool:
    if dataset.get("VOILUTSequence"):
        return True
    centre, width = dataset.get("WindowCenter"), dataset.get("WindowWidth")
    return centre not in (None, "") and width not in (None, "")
