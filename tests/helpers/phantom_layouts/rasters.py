"""Grey images of 8 bits in the file formats of archives; the same bytes for the same image."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from medclip_debias.phantom.files import dicom_header
from phantom_layouts.content import ContentStudy, ContentView

Pixels = NDArray[np.uint8]


def write_png(path: Path, pixels: Pixels) -> None:
    """Write an 8-bit grey PNG."""
    from PIL import Image

    Image.fromarray(pixels).save(path, format="PNG", compress_level=1)


def write_deep_png(path: Path, pixels: Pixels) -> None:
    """Write a 16-bit grey PNG whose values are 257 times those of 8 bits: 0 to 65535."""
    from PIL import Image

    Image.fromarray(pixels.astype(np.uint16) * 257).save(path, format="PNG", compress_level=1)


def write_grey_jpg(path: Path, pixels: Pixels) -> None:
    """Write a grey JPG of quality 95."""
    from PIL import Image

    Image.fromarray(pixels).save(path, format="JPEG", quality=95)


def write_grey_dicom(
    path: Path, pixels: Pixels, study: ContentStudy, view: ContentView, **elements: Any
) -> None:
    """Write a DICOM file of 8 bits, MONOCHROME2 and without window.

    Args:
        path: of the file.
        pixels: ``[H, W]``.
        study: what the header says of patient and study.
        view: and of the image.
        elements: further elements of the header by keyword; ``None`` leaves one out.
    """
    ds = dicom_header(study.study, view.view)
    ds.PatientSex = "F" if study.female else "M"
    ds.PhotometricInterpretation = "MONOCHROME2"
    ds.Rows, ds.Columns = pixels.shape
    ds.BitsAllocated, ds.BitsStored, ds.HighBit, ds.PixelRepresentation = 8, 8, 7, 0
    content = pixels.tobytes()
    ds.PixelData = content + b"\0" * (len(content) % 2)
    ds["PixelData"].VR = "OB"
    for name, value in elements.items():
        if value is None:
            delattr(ds, name)
        else:
            setattr(ds, name, value)
    buffer = io.BytesIO()
    ds.save_as(buffer, enforce_file_format=True)
    path.write_bytes(buffer.getvalue())


def write_by_name(path: Path, pixels: Pixels, study: ContentStudy, view: ContentView) -> None:
    """Write an image in the format that its name says: ``.png`` (8 bits), ``.jpg`` or DICOM."""
    suffix = path.suffix.lower()
    if suffix == ".png":
        write_png(path, pixels)
    elif suffix in (".jpg", ".jpeg"):
        write_grey_jpg(path, pixels)
    else:
        write_grey_dicom(path, pixels, study, view)
