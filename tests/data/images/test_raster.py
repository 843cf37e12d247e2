"""JPG and PNG: values, colours and depths as they are stored; and what is no whole radiograph."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from medclip_debias.data.images import read_radiograph
from medclip_debias.data.images.raster import luminance
from medclip_debias.errors import UserError

RAMP = (np.arange(60)[:, None] * 2 + np.arange(50)[None, :] * 2).astype(np.uint8)
NOISE = np.random.default_rng(0).integers(0, 65536, (60, 50, 3))
TURNED = Image.Exif()
TURNED[0x0112] = 6  # the camera was turned: show it a quarter clockwise


def png(width, height, depth, colour, body=b"", **more):
    """A PNG written by hand, whose pixels may be fewer than it says."""

    def chunk(kind, content):
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    extra = b"".join(chunk(name.encode(), content) for name, content in more.items())
    parts = (chunk(b"IHDR", head), extra, chunk(b"IDAT", zlib.compress(body)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def deep(samples, colour, **more):
    """A PNG of 16 bits a sample, which Pillow cannot write: ``samples`` ``[H, W, C]``."""
    height, width = samples.shape[:2]
    rows = samples.astype(">u2").reshape(height, -1)
    return png(width, height, 16, colour, b"".join(b"\0" + row.tobytes() for row in rows), **more)


def saved(array, kind="PNG", mode=None, **options):
    stream = io.BytesIO()
    Image.fromarray(array, mode=mode).save(stream, kind, **options)
    return stream.getvalue()


@pytest.fixture
def read(tmp_path):
    """A function: the grey values of a file of these bytes, which is named ``a.png``."""

    def read(content):
        (tmp_path / "a.png").write_bytes(content)
        return read_radiograph(tmp_path / "a.png").display()

    return read


WIDE, ALPHA = RAMP.astype(np.uint16) * 250, NOISE[..., 0]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (saved(RAMP), RAMP),
        (saved(WIDE), WIDE),
        (saved(np.stack([RAMP] * 3, -1)), RAMP),
        (saved(np.stack([RAMP] * 3 + [RAMP // 2], -1)), RAMP),
        (saved(np.stack([RAMP, RAMP // 3], -1)), RAMP),
        (deep(np.stack([WIDE] * 3, -1), 2), WIDE),
        (deep(np.stack([WIDE, ALPHA], -1), 4), WIDE),
        (deep(np.stack([WIDE] * 3 + [ALPHA], -1), 6), WIDE),
        (deep(np.stack([WIDE] * 3, -1), 2, eXIf=TURNED.tobytes()[6:]), np.rot90(WIDE, -1)),
    ],
    ids=["8", "16", "RGB", "RGBA", "LA", "RGB 16", "LA 16", "RGBA 16", "RGB 16 turned"],
)
def test_grey_keeps_its_values_whatever_colours_or_alpha_it_is_stored_with(read, content, expected):
    np.testing.assert_array_equal(read(content), expected)


def test_jpegs_are_turned_as_their_exif_data_says_and_cmyk_is_read_as_its_grey(read):
    half = np.zeros((40, 60), np.uint8)
    half[:20, :30] = 255
    turned = read(saved(half, "JPEG", exif=TURNED, quality=95))
    assert np.abs(turned - np.rot90(half, -1)).mean() < 3
    ink = np.stack([np.zeros_like(RAMP)] * 3 + [255 - RAMP], -1)
    assert np.abs(read(saved(ink, "JPEG", "CMYK", quality=100)) - RAMP).max() <= 3


def test_colours_count_by_their_luminance(read):
    assert np.abs(read(deep(NOISE, 2)) - NOISE @ [0.299, 0.587, 0.114]).max() < 2
    colours = (NOISE >> 8).astype(np.uint8)
    expected = np.asarray(Image.fromarray(colours).convert("L"))
    np.testing.assert_array_equal(luminance(colours), expected)
    np.testing.assert_allclose(luminance(colours / 255.0) * 255, expected, atol=0.51)


GREY = NOISE[..., 0].astype(np.uint8)
FRAMES = {"save_all": True, "append_images": [Image.fromarray(GREY // 2)]}
TOO_LARGE = "larger than 20,000 pixels per side or 200 megapixels"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (saved(GREY, "JPEG")[:40], "the image is truncated"),
        (saved(GREY, "JPEG")[:1500], "the image is truncated"),
        (saved(GREY)[:1500], "the image is truncated"),
        (deep(NOISE, 2)[:9000], "the image is truncated"),
        (saved(GREY, "TIFF"), "not a DICOM, JPG or PNG"),
        (saved(GREY, "WEBP"), "not a DICOM, JPG or PNG"),
        (saved(GREY > 99), "only black and white"),
        (saved(GREY, **FRAMES), "animated"),
        (saved(GREY[:15]), "fewer than 16"),
        (saved(np.tile(GREY[:20], 5)[:, :201]), "over 10 times"),
        (png(30_000, 100, 8, 0), TOO_LARGE),
        (png(19_000, 19_000, 8, 0), TOO_LARGE),
        (png(5200, 5200, 16, 2), "colour image of 5,200 x 5,200 pixels in 16 bits"),
        (png(5200, 5200, 16, 4), "colour image of 5,200 x 5,200 pixels in 16 bits"),
        (png(7200, 7200, 8, 6), "colour image of 7,200 x 7,200 pixels in 8 bits"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_whole_radiograph_is_refused_before_it_takes_memory(read, content, sentence):
    with pytest.raises(UserError, match=rf"a\.png: .*{sentence}"):
        read(content)
