"""Image files: what scanners, converters and transfers make of them."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bad_inputs.case import Counted, cases
from bad_inputs.world import World, write_dicom

SIDE = 40
Array = np.ndarray[Any, Any]
Files = dict[str, tuple[Callable[[Path], object], str]]


def _manifest(world: World, *writers: Callable[[Path], object], ending: str) -> list[str]:
    """A manifest whose first images are written by ``writers``, the others being good."""
    rows = world.rows(len(writers) + 6)
    for number, write in enumerate(writers):
        path = world.here / f"bad{number}{ending}"
        write(path)
        rows[number]["image"] = path.name
    return world.prepare(world.manifest(rows))


def _left_out(files: Files, ending: str) -> Any:
    """The value of a table: each of the files is rejected for its own reason."""
    reasons = [rf"bad{n}\{ending}: [^\n]*{reason}" for n, (_, reason) in enumerate(files.values())]
    every = "(?s)" + "".join(f"(?=.*{reason})" for reason in reasons)
    writers = tuple(write for write, _ in files.values())
    return Counted(every, {"writers": writers, "ending": ending})


def _raw(content: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(content)


def _noise(*shape: int) -> Array:
    return np.random.default_rng(0).integers(0, 255, shape, dtype=np.uint8)


def _save(array: Array, mode: str | None = None) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        from PIL import Image

        picture = Image.fromarray(array)
        (picture.convert(mode) if mode else picture).save(path)

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


DAMAGED = "truncated or damaged"
PICTURES: Files = {
    "an empty file": (_raw(b""), "the file is empty"),
    "text by the name of a PNG": (_raw(b"Zebulon Quackenbush, chest."), "is not a DICOM, JPG or"),
    "30,000 x 30,000 pixels that are not there": (_raw(_png_header(30_000, 30_000)), "200 mega"),
    "0 x 0 pixels": (_raw(_png_header(0, 0)), DAMAGED),
    "cut off in the middle": (_raw(_png()[:600]), DAMAGED),
    "flipped bits in its pixels": (_raw(_png()[:300] + b"\xff" * 40 + _png()[340:]), DAMAGED),
    "a strip of 2 x 2,000": (_save(_noise(2, 2000)), "fewer than 16 on a side"),
    "every pixel alike": (_save(np.full((SIDE, SIDE), 7, dtype=np.uint8)), "a single grey value"),
}


def _dicom(share: float = 1.0, **elements: Any) -> Callable[[Path], object]:
    """A DICOM file, cut off behind this share of it."""

    def write(path: Path) -> None:
        rows, columns = np.mgrid[:SIDE, :SIDE]
        write_dicom(path, ((rows + columns) * 50).astype(np.uint16), **elements)
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])

    return write


CT = "1.2.840.10008.5.1.4.1.1.2"
DICOM: Files = {
    "a slice of CT": (_dicom(SOPClassUID=CT, Modality="CT"), "says a CT image"),
    "no Rows": (_dicom(Rows=None), "no rows or no columns"),
    "more rows than there are pixels": (_dicom(Rows=4000), "10 times as long"),
    "BitsStored above BitsAllocated": (_dicom(BitsStored=40), "contradict each other"),
    "an unknown kind of pixels": (_dicom(PhotometricInterpretation="PURPLE"), "colour image"),
    "a window width of 0": (_dicom(WindowCenter="2000", WindowWidth="0"), "display window"),
    "a slope that is no number": (
        *(_dicom(RescaleSlope="1e999", RescaleIntercept="0"), "values that are not numbers"),
    ),
    "a file cut off in its pixels": (_dicom(0.5), DAMAGED),
    "a file cut off in its header": (_dicom(0.1), "holds no pixels"),
}
cases(
    "image files",
    lambda world, writers, ending: _manifest(world, *writers, ending=ending),
    {
        "pictures that are none": _left_out(PICTURES, ".png"),
        "DICOM files that are no radiographs": _left_out(DICOM, ".dcm"),
        "a CMYK JPEG": Counted("", ((_save(_noise(SIDE, SIDE, 3), "CMYK"),), ".jpg")),
    },
)
