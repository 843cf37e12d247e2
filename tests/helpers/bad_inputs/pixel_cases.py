"""Image files: what scanners, converters and transfers make of them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bad_inputs.case import Expected, cases, leads
from bad_inputs.world import World, write_dicom

SIDE = 40
Array = np.ndarray[Any, Any]


def _one(world: World, write: Callable[[Path], object], name: str = "images/0.png") -> list[str]:
    """A manifest whose first image is written by ``write``, the others being good."""
    rows = world.rows()
    path = world.here / name
    path.unlink(missing_ok=True)
    write(path)
    rows[0]["image"] = name
    return world.prepare(world.manifest(rows))


def _raw(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _noise(*shape: int, kind: Any = np.uint8) -> Array:
    top = np.iinfo(kind).max
    return np.random.default_rng(0).integers(0, top, shape, dtype=kind)


def _smooth() -> Array:
    rows, columns = np.mgrid[:SIDE, :SIDE]
    return ((rows + columns) / (2 * SIDE - 2) * 4000).astype(np.uint16)


def _save(array: Array, mode: str | None = None, **options: Any) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        from PIL import Image

        picture = Image.fromarray(array)
        (picture.convert(mode) if mode else picture).save(path, **options)

    return write


def _rgb16(path: Path) -> None:
    import cv2

    cv2.imwrite(str(path), _noise(SIDE, SIDE, 3, kind=np.uint16))


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


def _or_read(value: Any) -> Expected:
    return leads(value, "read", "counted", shows=REJECTED)


cases(
    "image file",
    _one,
    {
        "an empty file": _raw(b""),
        "text by the name of a PNG": _raw(b"Zebulon Quackenbush, chest."),
        "a PNG that says 30,000 x 30,000 and holds nothing": _raw(_png_header(30_000, 30_000)),
        "a PNG that says 0 x 0": _raw(_png_header(0, 0)),
        "a PNG cut off in the middle": _raw(_png()[:600]),
        "a PNG with flipped bits in its pixels": _raw(_png()[:300] + b"\xff" * 40 + _png()[340:]),
        "one pixel": _save(_noise(1, 1)),
        "three by two pixels": _save(_noise(3, 2)),
        "a strip of 2 x 2,000": _save(_noise(2, 2000)),
        "every pixel alike": _save(np.full((SIDE, SIDE), 7, dtype=np.uint8)),
        "colour, 8 bits": _or_read(_save(_noise(SIDE, SIDE, 3))),
        "a palette": _or_read(_save(_noise(SIDE, SIDE), "P")),
        "an alpha channel": _or_read(_save(_noise(SIDE, SIDE), "LA")),
        "CMYK JPEG": _or_read((_save(_noise(SIDE, SIDE, 4)[..., :3], "CMYK"), "images/0.jpg")),
        "a folder by the name of an image": leads(
            lambda path: path.mkdir(), "refused", "counted", shows=REJECTED
        ),
        "a PNG of three 16-bit channels": _or_read(_rgb16),
    },
    "counted",
    shows=REJECTED,
)


def _dicom(
    world: World, array: Array | None = None, share: float = 1.0, **elements: Any
) -> list[str]:
    """A manifest with a DICOM file, cut off behind this share of it."""

    def write(path: Path) -> None:
        write_dicom(path, _smooth() if array is None else array, **elements)
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])

    return _one(world, write, "0.dcm")


CT, MR = "1.2.840.10008.5.1.4.1.1.2", "1.2.840.10008.5.1.4.1.1.4"
cases(
    "DICOM file",
    _dicom,
    {
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
        "12 bits stored, shifted left by 4": _or_read(
            {"array": _smooth() << 4, "BitsStored": 12, "HighBit": 15}
        ),
        "PixelPaddingValue around the radiograph": _or_read(
            {
                "array": np.pad(_smooth()[5:35, 5:35], 5, constant_values=65535),
                "PixelPaddingValue": 65535,
            }
        ),
        "a window width of 0": _or_read({"WindowCenter": "2000", "WindowWidth": "0"}),
        "a rescale slope of 0": {"RescaleSlope": "0", "RescaleIntercept": "0"},
        "a rescale slope that is no number": leads(
            {"RescaleSlope": "1e999", "RescaleIntercept": "0"}, "counted", "read", shows=REJECTED
        ),
        "a file cut off in its pixels": {"share": 0.5},
        "a file cut off in its header": {"share": 0.1},
    },
    "counted",
    shows=REJECTED,
)
