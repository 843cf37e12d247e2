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


def write_by_name(
    path: Path, pixels: Pixels, study: ContentStudy, view: ContentView, deep: bool = False
) -> None:
    """Write an image in the format that its name says: PNG, JPG of quality 95, or DICOM.

    A ``deep`` PNG has 16 bits: 257 times the values of 8 bits, 0 to 65535.
    """
    from PIL import Image

    if path.suffix == ".png":
        grey = pixels.astype(np.uint16) * 257 if deep else pixels
        Image.fromarray(grey).save(path, compress_level=1)
    elif path.suffix == ".jpg":
        Image.fromarray(pixels).save(path, quality=95)
    else:
        write_grey_dicom(path, pixels, study, view)
