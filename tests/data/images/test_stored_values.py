"""Where a value lies in its word, which values are padding, and files that are no radiographs.

The expected values are closed forms of what was stored, never another reading of the same file.
"""

import io
import struct
import zlib
from pathlib import Path

import numpy as np
import pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydicom.data import get_testdata_file
from pydicom.uid import ExplicitVRBigEndian, JPEGLSLossless, RLELossless

from medclip_debias.config import PrepareSettings
from medclip_debias.data.images import prepare_image, read_image, read_radiograph
from medclip_debias.errors import UserError

RAMP = np.arange(60)[:, None] * 7 + np.arange(50)[None, :] * 3
CT = "1.2.840.10008.5.1.4.1.1.2"
WHOLE = PrepareSettings(size=64, clip=(0, 100))


def words_of(values, allocated, stored, high, noise):
    """``values`` in bits ``high - stored + 1 .. high`` of words, noise in all other bits."""
    mask = (1 << stored) - 1
    place = high - stored + 1
    kept = (np.asarray(values, np.int64) & mask) << place
    words = kept | (noise & ~(mask << place) & ((1 << allocated) - 1))
    return words.astype(f"u{allocated // 8}")


class TestHighBit:
    @given(st.data())
    def test_values_are_read_from_their_bits_whatever_lies_in_the_others(
        self, tmp_path, write_dicom, data
    ):
        allocated = data.draw(st.sampled_from([8, 16, 32]))
        stored = data.draw(st.integers(6, min(allocated, 20)))
        high = data.draw(st.integers(stored - 1, allocated - 1))
        signed = data.draw(st.booleans())
        forms = ["plain", "big", "rle"] if allocated < 32 else ["plain", "big"]
        form = data.draw(st.sampled_from(forms))
        random = np.random.default_rng(data.draw(st.integers(0, 1000)))
        low = -(1 << (stored - 1)) if signed else 0
        values = random.integers(low, low + (1 << stored), (24, 20))
        noise = random.integers(0, 1 << 32, values.shape)
        words = words_of(values, allocated, stored, high, noise)
        elements = {"BitsStored": stored, "HighBit": high, "PixelRepresentation": int(signed)}
        path = write_dicom(tmp_path / "a.dcm", words, **elements)
        dataset = pydicom.dcmread(path)
        if form == "rle":
            dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID
            dataset.BitsStored, dataset.HighBit = allocated, allocated - 1  # all bits of the words
            dataset.compress(RLELossless, generate_instance_uid=False)
            dataset.BitsStored, dataset.HighBit = stored, high
            dataset.save_as(path, enforce_file_format=True)
        elif form == "big":
            dataset.PixelData = words.byteswap().tobytes()
            dataset["PixelData"].VR = "OB" if allocated == 8 else "OW"
            dataset.file_meta.TransferSyntaxUID = ExplicitVRBigEndian
            pydicom.dcmwrite(path, dataset, little_endian=False, implicit_vr=False)
        np.testing.assert_array_equal(read_image(path), values)

    def test_a_missing_one_is_read_as_the_only_one_that_agrees_and_said(
        self, tmp_path, write_dicom
    ):
        array = np.arange(24 * 20, dtype=np.uint16).reshape(24, 20) + 3000
        whole = write_dicom(tmp_path / "a.dcm", array, BitsStored=12, HighBit=11)
        without = write_dicom(tmp_path / "b.dcm", array, BitsStored=12, HighBit=None)
        np.testing.assert_array_equal(read_image(without), read_image(whole))
        assert read_radiograph(whole).mended == ""
        assert read_radiograph(without).mended == "HighBit is missing"

    @pytest.mark.parametrize(("photometric", "agrees"), [(1, "INVERSE"), (2, "IDENTITY")])
    def test_two_words_on_polarity_that_contradict_each_other_are_said(
        self, tmp_path, write_dicom, photometric, agrees
    ):
        name = f"MONOCHROME{photometric}"
        array = np.arange(24 * 20, dtype=np.uint16).reshape(24, 20)
        plain = write_dicom(tmp_path / "plain.dcm", array, PhotometricInterpretation=name)
        for shape in ("IDENTITY", "INVERSE"):
            elements = {"PhotometricInterpretation": name, "PresentationLUTShape": shape}
            image = read_radiograph(write_dicom(tmp_path / f"{shape}.dcm", array, **elements))
            np.testing.assert_array_equal(image.display(), read_image(plain))
            assert bool(image.mended) == (shape != agrees)

    @pytest.mark.parametrize(
        "elements",
        [
            {"BitsStored": 12, "HighBit": 10},
            {"BitsStored": 12, "HighBit": 16},
            {"BitsStored": 17, "HighBit": 16},
            {"BitsStored": 0, "HighBit": 15},
        ],
    )
    def test_bits_that_contradict_each_other_are_refused(self, tmp_path, write_dicom, elements):
        path = write_dicom(tmp_path / "a.dcm", RAMP.astype(np.uint16), **elements)
        with pytest.raises(UserError, match=r"a\.dcm: .*contradict each other"):
            read_image(path)

    def test_one_bit_a_pixel_is_no_radiograph(self, tmp_path, write_dicom):
        path = write_dicom(
            tmp_path / "a.dcm",
            np.zeros((16, 16), np.uint8),
            BitsAllocated=1,
            BitsStored=1,
            HighBit=0,
            PixelData=bytes(range(32)),
        )
        with pytest.raises(UserError, match="only black and white"):
            read_image(path)

    def test_compressed_values_of_unknown_place_are_refused(self, tmp_path, write_dicom):
        path = write_dicom(tmp_path / "a.dcm", RAMP.astype(np.uint16), BitsStored=12, HighBit=11)
        dataset = pydicom.dcmread(path)
        dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID
        dataset.compress(JPEGLSLossless, generate_instance_uid=False)
        dataset.HighBit = 15
        dataset.save_as(path, enforce_file_format=True)
        with pytest.raises(UserError, match="HighBit is not BitsStored - 1"):
            read_image(path)


class TestPadding:
    @given(
        signed=st.booleans(),
        inverted=st.booleans(),
        limit=st.sampled_from([None, 4, -4]),
        value=st.sampled_from([-2000, 0, 4095, 32000]),
        seed=st.integers(0, 100),
    )
    def test_it_takes_no_part_in_the_grey_levels_and_is_black(
        self, tmp_path, write_dicom, signed, inverted, limit, value, seed
    ):
        """Against the picture inside alone, stretched by plain arithmetic."""
        if not signed and value + min(limit or 0, 0) < 0:
            return
        random = np.random.default_rng(seed)
        inside = random.integers(500, 3000, (40, 30)).astype(np.int64)
        padded = np.full((40, 40), value, np.int64)
        padded[:, 10:] = inside
        if limit is not None:  # the range reaches from the value to the limit, up or down
            padded[:, :10] = value + np.sign(limit) * random.integers(0, abs(limit) + 1, (40, 10))
        elements = {"PixelPaddingValue": value}
        if limit is not None:
            elements["PixelPaddingRangeLimit"] = value + limit
        path = write_dicom(
            tmp_path / "a.dcm",
            padded.astype(np.int16 if signed else np.uint16),
            PhotometricInterpretation="MONOCHROME1" if inverted else "MONOCHROME2",
            **elements,
        )
        shown = inside.max() - inside if inverted else inside - inside.min()
        expected = np.zeros((40, 40))
        expected[:, 10:] = shown / shown.max() * 255
        image = read_radiograph(path)
        assert image.range == (inside.min(), inside.max())
        settings = PrepareSettings(size=40, clip=(0, 100), window="none")
        assert np.abs(prepare_image(image, settings) - expected).max() <= 0.501
        low, high = np.percentile(-inside if inverted else inside, (0.5, 99.5))
        ends = sorted(image.percentiles((0.5, 99.5)))
        assert ends == pytest.approx(sorted((-low, -high) if inverted else (low, high)))

    @pytest.mark.parametrize("written", [-2000, 63536])
    @pytest.mark.parametrize(("dtype", "bits"), [(np.int16, 16), (np.uint16, 16), (np.uint16, 12)])
    def test_a_value_written_with_the_other_sign_is_understood(
        self, tmp_path, write_dicom, written, dtype, bits
    ):
        array = (RAMP % 900 + 100).astype(np.uint16)
        array[:, :5] = 63536
        path = write_dicom(tmp_path / "a.dcm", array.view(dtype), BitsStored=bits, HighBit=bits - 1)
        dataset = pydicom.dcmread(path)
        dataset.add_new(0x00280120, "US" if written > 0 else "SS", written)
        dataset.save_as(path, enforce_file_format=True)
        inside = array[:, 5:]
        assert read_radiograph(path).range == (inside.min(), inside.max())
        assert (prepare_image(read_radiograph(path), WHOLE)[:, 5:9] == 0).all()

    def test_a_window_and_a_slope_do_not_bring_it_back(self, tmp_path, write_dicom):
        array = RAMP.astype(np.int16) + 1000
        array[:7] = -30000
        path = write_dicom(
            tmp_path / "a.dcm",
            array,
            PixelPaddingValue=-30000,
            RescaleSlope="2",
            RescaleIntercept="5",
            WindowCenter="3000",
            WindowWidth="5000",
        )
        inside = 2.0 * array[7:] + 5
        windowed = np.clip((inside - 3000 + 0.5) / 4999 + 0.5, 0, 1)
        found = read_image(path)
        span = found[7:].max() - found[7:].min()
        expected = (windowed - windowed.min()) / (windowed.max() - windowed.min())
        np.testing.assert_allclose((found[7:] - found[7:].min()) / span, expected, atol=1e-5)
        assert (found[:7] == found[7:].min()).all()

    def test_a_file_of_padding_alone_is_refused(self, tmp_path, write_dicom):
        array = np.full((20, 20), 7, np.uint16)
        path = write_dicom(tmp_path / "a.dcm", array, PixelPaddingValue=7)
        with pytest.raises(UserError, match="contains only padding"):
            read_image(path)

    def test_a_value_that_no_pixel_has_changes_nothing(self, tmp_path, write_dicom):
        path = write_dicom(tmp_path / "a.dcm", RAMP.astype(np.uint16), PixelPaddingValue=65535)
        np.testing.assert_array_equal(read_image(path), RAMP)


class TestOtherDevices:
    @pytest.mark.parametrize(
        ("name", "words"), [("CT_small.dcm", "a CT image"), ("MR_small.dcm", "an MR image")]
    )
    def test_a_real_slice_is_refused_in_words_of_our_own(self, name, words):
        path = Path(get_testdata_file(name, download=False))
        with pytest.raises(UserError, match=rf"{name}: its header .* says {words}, not a rad"):
            read_image(path)

    @pytest.mark.filterwarnings("ignore:Invalid value for VR")
    @pytest.mark.parametrize("modality", ["US", "MG", "PT", "NM", "XA", "Doe^Jane"])
    def test_modality_alone_is_enough_and_is_never_quoted(self, tmp_path, write_dicom, modality):
        path = write_dicom(tmp_path / "a.dcm", RAMP.astype(np.uint16), Modality=modality)
        with pytest.raises(UserError, match="not a radiograph; leave it out") as caught:
            read_image(path)
        assert "Doe" not in str(caught.value)

    def test_the_storage_class_alone_is_enough(self, tmp_path, write_dicom):
        path = write_dicom(tmp_path / "a.dcm", RAMP.astype(np.uint16), SOPClassUID=CT)
        with pytest.raises(UserError, match="not a radiograph"):
            read_image(path)

    @pytest.mark.filterwarnings("ignore:Invalid value for VR")
    @pytest.mark.parametrize("modality", ["CR", "DX", "DR", "RG", "RF", "OT", "cr ", "", None])
    def test_radiographs_are_read_also_where_the_header_is_silent(
        self, tmp_path, write_dicom, modality
    ):
        given = {} if modality is None else {"Modality": modality}
        path = write_dicom(tmp_path / "a.dcm", RAMP.astype(np.uint16), **given)
        np.testing.assert_array_equal(read_image(path), RAMP)

    def test_computed_values_are_refused(self, tmp_path, write_dicom):
        path = write_dicom(tmp_path / "a.dcm", RAMP.astype(np.uint16), PixelData=None)
        dataset = pydicom.dcmread(path)
        dataset.FloatPixelData = RAMP.astype("<f4").tobytes()
        dataset.save_as(path, enforce_file_format=True)
        with pytest.raises(UserError, match="floating-point pixels"):
            read_image(path)


class TestShape:
    @pytest.mark.parametrize(
        ("sides", "words"),
        [((1, 1), "fewer than 16"), ((15, 400), "fewer than 16"), ((20, 201), "over 10 times")],
    )
    @pytest.mark.parametrize("kind", ["dcm", "png"])
    def test_a_few_pixels_or_a_strip_are_no_radiograph(
        self, tmp_path, write_dicom, sides, words, kind
    ):
        array = np.random.default_rng(0).integers(0, 255, sides, dtype=np.uint8)
        path = tmp_path / f"a.{kind}"
        if kind == "png":
            Image.fromarray(array).save(path)
        else:
            write_dicom(path, array)
        with pytest.raises(UserError, match=words):
            read_image(path)


def deep_png(samples, colour, **chunks):
    """A PNG of 16 bits a sample, written by hand (Pillow cannot): ``samples`` ``[H, W, C]``."""

    def chunk(kind, body):
        checksum = struct.pack(">I", zlib.crc32(kind + body))
        return struct.pack(">I", len(body)) + kind + body + checksum

    height, width = samples.shape[:2]
    rows = samples.astype(">u2").reshape(height, -1)
    body = b"".join(b"\0" + row.tobytes() for row in rows)
    head = struct.pack(">IIBBBBB", width, height, 16, colour, 0, 0, 0)
    extra = b"".join(chunk(name.encode(), content) for name, content in chunks.items())
    parts = (chunk(b"IHDR", head), extra, chunk(b"IDAT", zlib.compress(body)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


class TestPng:
    @settings(max_examples=30)
    @given(seed=st.integers(0, 1000), colour=st.sampled_from([2, 4, 6]))
    def test_grey_stored_as_16_bit_colour_keeps_its_values(self, tmp_path, seed, colour):
        random = np.random.default_rng(seed)
        grey = random.integers(0, 65536, (20, 17))
        alpha = random.integers(0, 65536, grey.shape)
        planes = {2: [grey] * 3, 4: [grey, alpha], 6: [grey, grey, grey, alpha]}[colour]
        path = tmp_path / "a.png"
        path.write_bytes(deep_png(np.stack(planes, axis=-1), colour))
        np.testing.assert_array_equal(read_image(path), grey)

    def test_the_luminance_of_an_array_is_pillows(self):
        from medclip_debias.data.images.raster import luminance

        colours = np.random.default_rng(0).integers(0, 256, (300, 200, 3), dtype=np.uint8)
        expected = np.asarray(Image.fromarray(colours).convert("L"))
        np.testing.assert_array_equal(luminance(colours), expected)
        np.testing.assert_allclose(luminance(colours / 255.0) * 255, expected, atol=0.51)
        every = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)
        np.testing.assert_array_equal(luminance(np.stack([every] * 4, axis=-1)), every)

    def test_16_bit_colour_counts_by_its_luminance(self, tmp_path):
        rgb = np.random.default_rng(1).integers(0, 65536, (30, 20, 3))
        path = tmp_path / "a.png"
        path.write_bytes(deep_png(rgb, 2))
        assert np.abs(read_image(path) - rgb @ [0.299, 0.587, 0.114]).max() < 2

    def test_16_bit_colour_is_turned_as_its_exif_data_says(self, tmp_path):
        grey = np.arange(20 * 30).reshape(20, 30) * 100
        exif = Image.Exif()
        exif[0x0112] = 6
        path = tmp_path / "a.png"
        path.write_bytes(deep_png(np.stack([grey] * 3, -1), 2, eXIf=exif.tobytes()[6:]))
        np.testing.assert_array_equal(read_image(path), np.rot90(grey, -1))

    @pytest.mark.parametrize("share", [0.3, 0.9])
    def test_truncated_16_bit_colour_is_refused(self, tmp_path, share):
        rgb = np.random.default_rng(1).integers(0, 65536, (30, 20, 3))
        content = deep_png(rgb, 2)
        path = tmp_path / "a.png"
        path.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(UserError, match="truncated or damaged"):
            read_image(path)

    def test_black_and_white_and_moving_pictures_are_refused(self, tmp_path):
        noise = np.random.default_rng(0).integers(0, 255, (40, 30), dtype=np.uint8)
        path = tmp_path / "a.png"
        Image.fromarray(noise > 99).save(path)
        with pytest.raises(UserError, match="only black and white"):
            read_image(path)
        frames = [Image.fromarray(noise), Image.fromarray(noise // 2)]
        frames[0].save(path, save_all=True, append_images=frames[1:])
        with pytest.raises(UserError, match="animated"):
            read_image(path)


def test_grey_in_a_cmyk_jpeg_is_read_as_that_grey(tmp_path):
    grey = (RAMP // 3).astype(np.uint8)
    planes = [np.zeros_like(grey)] * 3 + [255 - grey]
    stream = io.BytesIO()
    Image.fromarray(np.stack(planes, -1), mode="CMYK").save(stream, "JPEG", quality=100)
    path = tmp_path / "a.jpg"
    path.write_bytes(stream.getvalue())
    assert np.abs(read_image(path) - grey).max() <= 3


@pytest.mark.parametrize("kind", ["TIFF", "BMP", "GIF", "WEBP"])
def test_other_kinds_of_picture_are_refused_whatever_their_name(tmp_path, kind):
    picture = Image.fromarray(RAMP.astype(np.float32) if kind == "TIFF" else RAMP.astype(np.uint8))
    stream = io.BytesIO()
    picture.save(stream, kind)
    path = tmp_path / "a.png"
    path.write_bytes(stream.getvalue())
    with pytest.raises(UserError, match="not a DICOM, JPG or PNG"):
        read_image(path)
