"""Image files: what scanners, converters and transfers make of them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bad_inputs.case import case
from bad_inputs.world import World

AREA = "image file"
SIDE = 40


def _one(write: Callable[[Path], None], name: str = "images/0.png") -> Callable[[World], list[str]]:
    """A manifest whose first image is written by ``write``, the others being good."""

    def build(world: World) -> list[str]:
        rows = world.rows()
        path = world.here / name
        path.unlink(missing_ok=True)
        write(path)
        rows[0]["image"] = name
        return world.prepare(world.manifest(rows))

    return build


def _raw(content: bytes) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_bytes(content)

    return write


def _noise(*shape: int, kind: Any = np.uint8) -> np.ndarray:
    top = np.iinfo(kind).max
    return np.random.default_rng(0).integers(0, top, shape, dtype=kind)


def _smooth(kind: Any = np.uint16, top: int = 4000) -> np.ndarray:
    rows, columns = np.mgrid[:SIDE, :SIDE]
    return ((rows + columns) / (2 * SIDE - 2) * top).astype(kind)


def _save(array: np.ndarray, mode: str | None = None, **options: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        from PIL import Image

        picture = Image.fromarray(array)
        (picture.convert(mode) if mode else picture).save(path, **options)

    return write


def _png_header(width: int, height: int) -> bytes:
    def block(name: bytes, content: bytes) -> bytes:
        body = name + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    size = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + block(b"IHDR", size) + block(b"IDAT", zlib.compress(b""))


def _png() -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(_noise(SIDE, SIDE)).save(stream, "PNG")
    return stream.getvalue()


REJECTED = "images/0|0\\.png|0\\.dcm|0\\.jpg|0\\.tif"
for what, content in {
    "an empty file": b"",
    "text by the name of a PNG": b"Zebulon Quackenbush, chest.",
    "a PNG that says 30,000 x 30,000 and holds nothing": _png_header(30_000, 30_000),
    "a PNG that says 0 x 0": _png_header(0, 0),
    "a PNG cut off in the middle": _png()[:600],
    "a PNG with flipped bits in its pixels": _png()[:300] + b"\xff" * 40 + _png()[340:],
}.items():
    case(AREA, what, "counted", shows=REJECTED)(_one(_raw(content)))

case(AREA, "one pixel", "counted", shows=REJECTED)(_one(_save(_noise(1, 1))))
case(AREA, "three by two pixels", "counted", shows=REJECTED)(_one(_save(_noise(3, 2))))
case(AREA, "a strip of 2 x 2,000", "counted", shows=REJECTED)(_one(_save(_noise(2, 2000))))
case(AREA, "every pixel alike", "counted", shows=REJECTED)(
    _one(_save(np.full((SIDE, SIDE), 7, dtype=np.uint8)))
)
case(AREA, "colour, 8 bits", "read", "counted", shows=REJECTED)(_one(_save(_noise(SIDE, SIDE, 3))))
case(AREA, "a palette", "read", "counted", shows=REJECTED)(_one(_save(_noise(SIDE, SIDE), "P")))
case(AREA, "an alpha channel", "read", "counted", shows=REJECTED)(
    _one(_save(_noise(SIDE, SIDE), "LA"))
)
case(AREA, "CMYK JPEG", "read", "counted", shows=REJECTED)(
    _one(_save(_noise(SIDE, SIDE, 4)[..., :3], "CMYK"), "images/0.jpg")
)
case(AREA, "a folder by the name of an image", "refused", "counted", shows=REJECTED)(
    _one(lambda path: path.mkdir())
)


def _rgb16(path: Path) -> None:
    import cv2

    cv2.imwrite(str(path), _noise(SIDE, SIDE, 3, kind=np.uint16))


case(AREA, "a PNG of three 16-bit channels", "read", "counted", shows=REJECTED)(_one(_rgb16))

DICOM = "DICOM file"


def _dicom(array: np.ndarray | None = None, **elements: Any) -> Callable[[World], list[str]]:
    return _one(
        lambda path: write_dicom(path, _smooth() if array is None else array, **elements), "0.dcm"
    )


def write_dicom(path: Path, array: np.ndarray, **elements: Any) -> None:
    """A radiograph as DICOM; keywords set elements, or remove them (None)."""
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, generate_uid

    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = "1.2.840.10008.5.1.4.1.1.1.1"
    meta.MediaStorageSOPInstanceUID = generate_uid()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    data.SOPClassUID, data.Modality = meta.MediaStorageSOPClassUID, "DX"
    data.PatientName, data.PatientID = "Quackenbush^Zebulon", "19876543"
    data.Rows, data.Columns = array.shape[:2]
    data.SamplesPerPixel, data.PhotometricInterpretation = 1, "MONOCHROME2"
    bits = 8 * array.dtype.itemsize
    data.BitsAllocated, data.BitsStored, data.HighBit = bits, bits, bits - 1
    data.PixelRepresentation = int(np.issubdtype(array.dtype, np.signedinteger))
    data.PixelData = array.tobytes()
    for name, value in elements.items():
        if name == "MediaStorageSOPClassUID":
            meta.MediaStorageSOPClassUID = data.SOPClassUID = value
        elif value is None:
            delattr(data, name)
        else:
            setattr(data, name, value)
    data.save_as(path, enforce_file_format=True)


CT, MR = "1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.4"
for what, elements in {
    "a slice of CT": {"MediaStorageSOPClassUID": CT, "Modality": "CT"},
    "a slice of MR": {"MediaStorageSOPClassUID": MR, "Modality": "MR"},
    "a structured report, no pixels": {"PixelData": None, "Modality": "SR"},
    "no Rows": {"Rows": None},
    "Rows of 0": {"Rows": 0},
    "more rows than there are pixels": {"Rows": 4000},
    "BitsStored above BitsAllocated": {"BitsStored": 40},
    "an unknown photometric interpretation": {"PhotometricInterpretation": "PURPLE"},
    "three samples a pixel that are not there": {"SamplesPerPixel": 3},
    "HighBit below BitsStored - 1": {"BitsStored": 12, "HighBit": 3},
}.items():
    case(DICOM, what, "counted", shows=REJECTED)(_dicom(**elements))

case(
    DICOM,
    "12 bits stored, shifted left by 4",
    "read",
    "counted",
    shows=REJECTED,
)(_dicom(_smooth() << 4, BitsStored=12, HighBit=15))
case(DICOM, "PixelPaddingValue around the radiograph", "read", "counted", shows=REJECTED)(
    _dicom(np.pad(_smooth()[5:35, 5:35], 5, constant_values=65535), PixelPaddingValue=65535)
)
case(DICOM, "a window width of 0", "read", "counted", shows=REJECTED)(
    _dicom(WindowCenter="2000", WindowWidth="0")
)
case(DICOM, "a rescale slope of 0", "counted", shows=REJECTED)(
    _dicom(RescaleSlope="0", RescaleIntercept="0")
)
case(DICOM, "a rescale slope that is no number", "counted", "read", shows=REJECTED)(
    _dicom(RescaleSlope="1e999", RescaleIntercept="0")
)
case(DICOM, "a file cut off in its pixels", "counted", shows=REJECTED)(
    _one(lambda path: _cut_dicom(path, 0.5), "0.dcm")
)
case(DICOM, "a file cut off in its header", "counted", shows=REJECTED)(
    _one(lambda path: _cut_dicom(path, 0.1), "0.dcm")
)


def _cut_dicom(path: Path, share: float) -> None:
    write_dicom(path, _smooth())
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
