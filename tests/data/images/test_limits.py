"""Small files that would need minutes or gigabytes are refused before anything is built of them."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from medclip_debias.data.images import read_radiograph
from medclip_debias.data.images.headers import identity, view_position
from medclip_debias.errors import UserError

ITEM, END = b"\xfe\xff\x00\xe0", b"\xfe\xff\xdd\xe0" + bytes(4)
MANY = 25_000


def element(group: int, number: int, kind: bytes, value: bytes) -> bytes:
    """An element in explicit VR, little endian (PS3.5, 7.1.2)."""
    head = struct.pack("<HH", group, number) + kind
    if kind in (b"SQ", b"OB", b"OW", b"UN"):
        return head + bytes(2) + struct.pack("<I", len(value)) + value
    return head + struct.pack("<H", len(value)) + value


def text(value: str) -> bytes:
    return value.encode() + b"\0" * (len(value) % 2)


def item(content: bytes = b"") -> bytes:
    return ITEM + struct.pack("<I", len(content)) + content


def sequence(group: int, number: int, content: bytes, length: str) -> bytes:
    if length == "defined":
        return element(group, number, b"SQ", content)
    return struct.pack("<HH", group, number) + b"SQ" + bytes(2) + b"\xff" * 4 + content + END


def dicom(*more: bytes) -> bytes:
    """A deflated radiograph of 64 x 64 pixels with more elements, which stand before its size."""
    meta = element(2, 2, b"UI", text("1.2.840.10008.5.1.4.1.1.1.1"))
    meta += element(2, 16, b"UI", text("1.2.840.10008.1.2.1.99"))
    content = element(8, 0x16, b"UI", text("1.2.840.10008.5.1.4.1.1.1.1"))
    content += b"".join(more)
    content += element(0x28, 2, b"US", b"\1\0") + element(0x28, 4, b"CS", b"MONOCHROME2 ")
    for number, value in ((0x10, 64), (0x11, 64), (0x100, 8), (0x101, 8), (0x102, 7), (0x103, 0)):
        content += element(0x28, number, b"US", struct.pack("<H", value))
    content += element(0x7FE0, 16, b"OB", bytes(range(256)) * 16)
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    length = element(2, 0, b"UL", struct.pack("<I", len(meta)))
    return bytes(128) + b"DICM" + length + meta + packer.compress(content) + packer.flush()


EMPTY = element(9, 1, b"LO", b"")
BOMBS = {
    "items in items": sequence(
        0x8, 0x1115, item(sequence(9, 16, item() * MANY, "undefined")), "undefined"
    ),
    "elements": element(0x8, 0x1000, b"LO", b"") * MANY,
    "elements of an item": sequence(0x8, 0x1115, ITEM + b"\xff" * 4 + EMPTY * MANY, "undefined"),
    "lookup tables": sequence(0x28, 0x3010, item() * MANY, "undefined"),
    "lookup tables of one length": sequence(0x28, 0x3010, item() * MANY, "defined"),
    "a lookup table of elements": sequence(0x28, 0x3000, item(EMPTY * 300_000), "defined"),
    "rows that are a sequence": sequence(0x28, 0x10, item() * MANY, "defined"),
    "character sets": element(8, 5, b"UN", b"x\\" * MANY),
    "character sets of an item": sequence(
        0x8, 0x1115, item(element(8, 5, b"UN", b"x\\" * MANY)), "undefined"
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_more_elements_than_any_radiograph_has_are_not_built(tmp_path, name):
    path = tmp_path / "a.dcm"
    path.write_bytes(dicom(BOMBS[name]))
    with pytest.raises(UserError, match=r"a\.dcm: holds more elements, or longer ones"):
        read_radiograph(path)


@pytest.mark.parametrize("tag", [(0x18, 0x5101), (0x10, 0x20), (0x28, 0x10)])
def test_a_header_that_is_a_sequence_says_nothing(tmp_path, tag):
    path = tmp_path / "a.dcm"
    path.write_bytes(dicom(sequence(*tag, item() * MANY, "defined")))
    assert view_position(path) == ""
    assert identity(path).patient == ""


@pytest.mark.parametrize("length", ["defined", "undefined"])
def test_what_a_radiograph_may_hold_beside_its_pixels_is_no_matter(tmp_path, length):
    """Private sequences, icons, and two lookup tables of 16 bits."""
    table = element(0x28, 0x3002, b"US", struct.pack("<HHH", 256, 0, 16))
    table += element(0x28, 0x3006, b"OW", np.arange(256, dtype="<u2").tobytes())
    private = item(element(9, 0x1001, b"OB", bytes(range(256)) * 4000))
    content = dicom(
        sequence(0x9, 0x1010, private * 3, length),
        sequence(0x28, 0x3010, item(table) * 2, length),
        *(element(0x19, 0x1000 + n, b"LO", b"text") for n in range(3000)),
    )
    (tmp_path / "a.dcm").write_bytes(content)
    image = read_radiograph(tmp_path / "a.dcm", "none")
    expected = np.tile(np.arange(256), 16).reshape(64, 64)
    np.testing.assert_array_equal(image.values[image.codes], expected)


def test_a_jpeg_of_thousands_of_scans_is_not_decoded(tmp_path):
    stream = io.BytesIO()
    grey = np.arange(1 << 20, dtype=np.uint32).reshape(1024, 1024).astype(np.uint8)
    Image.fromarray(grey).save(stream, "JPEG", progressive=True)
    path, content = tmp_path / "a.jpg", stream.getvalue()
    path.write_bytes(content)
    assert read_radiograph(path).shape == (1024, 1024)
    last = content[content.rfind(b"\xff\xda") : -2]
    path.write_bytes(content[:-2] + last * 2000 + content[-2:])
    with pytest.raises(UserError, match=r"a\.jpg: its JPEG stream has 2,0\d\d scans"):
        read_radiograph(path)
