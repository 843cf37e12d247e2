"""What is read from the headers of image files alone: view position, size, and whose it is."""

from __future__ import annotations

import gzip
import logging
import warnings
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from medclip_debias.data.images.elements import read_elements
from medclip_debias.data.images.raster import is_raster
from medclip_debias.files import open_guarded

_LONGEST = 16  # characters of a DICOM code string
_SIZE = ["Rows", "Columns"]
_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # EXIF


class Identity(NamedTuple):
    """Whose image a DICOM file is, for archives whose tables do not say it.

    Attributes:
        view: view position in capitals, ``""`` unknown.
        patient: the header's patient id, ``""`` unknown. It goes into tables alone, no message.
        size: width and height, ``None`` unknown.
    """

    view: str = ""
    patient: str = ""
    size: tuple[int, int] | None = None


def view_position(path: Path) -> str:
    """Return the view position of a DICOM file in capitals, ``""`` where there is none to read.

    A file that cannot be read gives ``""``, too: `prepare` rejects it with its reason, or counts
    it among the blank views.
    """
    header = read_header(path, ["ViewPosition"])
    return _view(header) if header is not None else ""


def identity(path: Path) -> Identity:
    """Return whose image a DICOM file is; what its header does not say, or hold well, is blank."""
    header = read_header(path, ["ViewPosition", "PatientID", *_SIZE])
    if header is None:
        return Identity()
    try:
        height, width = (header.get(name) for name in _SIZE)
        size = (int(width), int(height)) if width and height else None
        return Identity(_view(header), str(header.get("PatientID") or "").strip(), size)
    except Exception:  # a value surfaces as wrong when it is looked at
        return Identity()


def _view(header: Any) -> str:
    view = str(header.get("ViewPosition") or "").strip().upper()
    return view if len(view) <= _LONGEST else ""


def image_size(path: Path) -> tuple[int, int] | None:
    """Return width and height of an image file; ``None`` where no header says them.

    For archives whose boxes are shares of the image; a file that cannot be read is rejected, with
    its reason, when its pixels are.
    """
    from PIL import Image

    try:
        with open_guarded(path, "check the path") as file:
            raster = is_raster(file.read(256))
        if raster:
            with Image.open(path, formats=("JPEG", "PNG")) as image:
                turned = image.getexif().get(_ORIENTATION, 1) in _ON_ITS_SIDE
                return (image.height, image.width) if turned else (image.width, image.height)
        header = read_header(path, _SIZE)
        height, width = (header.get(name) for name in _SIZE) if header is not None else (0, 0)
        return (int(width), int(height)) if width and height else None
    except Exception:  # as above
        return None


def read_header(path: Path, tags: list[str]) -> Any:
    """Return a pydicom data set with these elements; ``None`` of a file that cannot be read.

    Args:
        path: a DICOM file, also packed (``.gz``) or without preamble.
        tags: keywords of the elements, at least one.
    """
    # pydicom warns about header values (sometimes quoting them) in files that read well.
    logging.getLogger("pydicom").setLevel(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with open_guarded(path, "check the path") as file:
                packed = path.suffix.lower() == ".gz"
                plain = cast(IO[bytes], gzip.GzipFile(fileobj=file)) if packed else file
                return read_elements(plain, path, tags)
        # A damaged header surfaces as any of a dozen exception types.
        except Exception:
            return None
