"""DICOM: what stored values mean, the compressed forms, and what is refused in which words."""

import io
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pydicom
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from pydicom.data import get_testdata_file
from pydicom.dataset import Dataset
from pydicom.encaps import encapsulate
from pydicom.uid import (
    UID,
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    JPEG2000Lossless,
    JPEGBaseline8Bit,
    JPEGExtended12Bit,
    JPEGLosslessSV1,
    JPEGLSLossless,
    RLELossless,
)

from lossless_jpeg import lossless_jpeg
from medclip_debias.config import PrepareSettings
from medclip_debias.data.images import (
    elements,
    read_image,
    read_radiograph,
    stretch,
)
from medclip_debias.data.images.dicom import codestream_size
from medclip_debias.data.images.headers import view_position
from medclip_debias.errors import UserError

RAMP = np.arange(60)[:, None] * 7 + np.arange(50)[None, :] * 3


def ramp(dtype, bits):
    """A picture over the whole range of ``bits``-bit values."""
    picture = np.rint(RAMP * ((1 << bits) - 1) / RAMP.max()).astype(np.int64)
    if np.issubdtype(dtype, np.signedinteger):
        picture -= 1 << (bits - 1)
    return picture.astype(dtype)


def rewrite(path, syntax, frame=None, **elements):
    """Change the transfer syntax of the file, and its pixels where ``frame`` is given."""
    dataset = pydicom.dcmread(path)
    dataset.file_meta.TransferSyntaxUID = UID(syntax)
    if frame is not None:
        dataset.PixelData = encapsulate([frame])
        dataset["PixelData"].is_undefined_length = True
    for name, value in elements.items():
        setattr(dataset, name, value)
    dataset.save_as(path, enforce_file_format=True)
    return path


def as_radiograph(name, tmp_path):
    """A public file of another device, with the kind of a radiograph in its header."""
    dataset = pydicom.dcmread(get_testdata_file(name, download=False))
    dataset.Modality, dataset.SOPClassUID = "CR", "1.2.840.10008.5.1.4.1.1.1"
    dataset.save_as(tmp_path / name)
    return tmp_path / name


def lut(values, first, bits=16):
    item = Dataset()
    item.LUTDescriptor = [len(values), first, bits]
    item.LUTData = np.asarray(values, "<u2").tobytes()
    return item


class TestStoredValues:
    @pytest.mark.parametrize(
        ("dtype", "bits"),
        [(np.uint8, 8), (np.uint16, 12), (np.uint16, 16), (np.int16, 12), (np.int16, 16)],
    )
    def test_every_depth_keeps_its_values(self, tmp_path, write_dicom, dtype, bits):
        array = ramp(dtype, bits)
        path = write_dicom(tmp_path / "a.dcm", array, BitsStored=bits, HighBit=bits - 1)
        np.testing.assert_array_equal(read_image(path), array)

    @pytest.mark.parametrize("dtype", [np.uint16, np.int16])
    def test_bits_above_the_stored_ones_do_not_count(self, tmp_path, write_dicom, dtype):
        array = ramp(dtype, 12)
        dirty = (array.view(np.uint16) & 0x0FFF) | 0x3000
        path = write_dicom(tmp_path / "a.dcm", dirty.view(dtype), BitsStored=12, HighBit=11)
        np.testing.assert_array_equal(read_image(path), array)

    def test_big_endian_files_are_read(self, tmp_path, write_dicom):
        array = ramp(np.uint16, 12)
        path = write_dicom(tmp_path / "a.dcm", array.byteswap())
        dataset = pydicom.dcmread(path)
        dataset.file_meta.TransferSyntaxUID = ExplicitVRBigEndian
        pydicom.dcmwrite(path, dataset, little_endian=False, implicit_vr=False)
        np.testing.assert_array_equal(read_image(path), array)


class TestMeaning:
    def test_of_several_windows_the_first_counts(self, tmp_path, write_dicom):
        array = ramp(np.uint16, 12)
        several = {"WindowCenter": ["2000", "900"], "WindowWidth": ["1000", "300"]}
        first = {"WindowCenter": "2000", "WindowWidth": "1000"}
        a = write_dicom(tmp_path / "a.dcm", array, **several)
        b = write_dicom(tmp_path / "b.dcm", array, **first)
        np.testing.assert_array_equal(read_image(a), read_image(b))
        np.testing.assert_array_equal(read_image(a, window="none"), array)

    @pytest.mark.parametrize("inverted", [False, True])
    def test_luts_are_looked_up_in_order(self, tmp_path, write_dicom, inverted):
        array = ramp(np.uint16, 8)
        modality = np.arange(256) ** 2 // 3  # 0..21675
        voi = (40000 * np.sqrt(np.linspace(0, 1, 20000))).astype(int)
        path = write_dicom(
            tmp_path / "a.dcm",
            array,
            ModalityLUTSequence=[lut(modality, 0)],
            VOILUTSequence=[lut(voi, 500), lut(voi[::-1], 0)],
            PhotometricInterpretation="MONOCHROME1" if inverted else "MONOCHROME2",
        )
        path = rewrite(path, pydicom.uid.ExplicitVRLittleEndian)
        expected = voi[np.clip(modality[array] - 500, 0, len(voi) - 1)]
        if inverted:
            expected = expected.max() + expected.min() - expected
        np.testing.assert_array_equal(read_image(path), expected)

    @given(
        seed=st.integers(0, 1000),
        signed=st.booleans(),
        inverted=st.booleans(),
        slope=st.sampled_from([None, "2", "0.37", "-1.5"]),
        window=st.sampled_from([None, ("700", "900"), ("0", "2500")]),
        clip=st.sampled_from([(0.0, 100.0), (0.5, 99.5), (2.0, 91.3)]),
    )
    def test_grey_levels_are_those_of_plain_arithmetic(
        self, tmp_path, write_dicom, seed, signed, inverted, slope, window, clip
    ):
        """Against the same steps on every pixel in float64, with numpy's percentiles."""
        array = np.random.default_rng(seed).normal(800, 300, (40, 30)).clip(0, 4095)
        array = (array - 900 * signed).astype(np.int16 if signed else np.uint16)
        elements = {"PhotometricInterpretation": "MONOCHROME1" if inverted else "MONOCHROME2"}
        values = array.astype(float)
        if slope is not None:
            elements |= {"RescaleSlope": slope, "RescaleIntercept": "-7"}
            values = values * float(slope) - 7
        if window is not None:
            elements |= dict(zip(("WindowCenter", "WindowWidth"), window, strict=True))
            centre, width = (float(number) for number in window)
            values = np.clip((values - centre + 0.5) / (width - 1) + 0.5, 0, 1)
        values = -values if inverted else values
        low, high = np.percentile(values, clip)
        if high - low < 1e-6:
            return
        expected = (np.clip(values, low, high) - low) / (high - low) * 255
        path = write_dicom(tmp_path / "a.dcm", array, **elements)
        grey = stretch(read_radiograph(path), PrepareSettings(clip=clip))
        assert np.abs(grey - expected).max() <= 0.501

    @pytest.mark.parametrize("photometric", ["MONOCHROME1", "MONOCHROME2"])
    def test_the_recipe_of_mimic_cxr_jpg_is_met_to_the_byte(
        self, tmp_path, write_dicom, photometric
    ):
        """Subtract the lowest, divide by the highest, cut to 8 bit, invert, equalise."""
        array = np.random.default_rng(4).gamma(3, 300, (90, 70)).clip(0, 4095).astype(np.uint16)
        scaled = array - array.min()
        scaled = (scaled / scaled.max() * 255).astype(np.uint8)
        expected = cv2.equalizeHist(255 - scaled if photometric == "MONOCHROME1" else scaled)
        path = write_dicom(
            tmp_path / "a.dcm",
            array,
            PhotometricInterpretation=photometric,
            WindowCenter="1000",
            WindowWidth="500",
        )
        recipe = PrepareSettings(clip=(0, 100), equalize=True, window="none")
        found = stretch(read_radiograph(path, recipe.window), recipe)
        np.testing.assert_array_equal(found, expected)


class TestCompressed:
    @pytest.mark.parametrize("name", ["RLE", "jp2klossless", "jpeg_ls_lossless"])
    def test_lossless_forms_of_a_real_file_equal_it(self, tmp_path, name):
        """Public pairs: the same slice plain and compressed by other people's programs."""
        plain = pydicom.dcmread(get_testdata_file("MR_small.dcm", download=False)).pixel_array
        packed = as_radiograph(f"MR_small_{name}.dcm", tmp_path)
        inside = plain != pydicom.dcmread(packed).get("PixelPaddingValue")
        np.testing.assert_array_equal(read_image(packed, window="none")[inside], plain[inside])
        assert inside.mean() > 0.5

    @pytest.mark.parametrize("syntax", [RLELossless, JPEG2000Lossless, JPEGLSLossless])
    @pytest.mark.parametrize(
        ("dtype", "bits"), [(np.uint8, 8), (np.uint16, 12), (np.int16, 12), (np.uint16, 16)]
    )
    def test_lossless_forms_keep_every_value(self, tmp_path, write_dicom, syntax, dtype, bits):
        array = ramp(dtype, bits)
        path = write_dicom(tmp_path / "a.dcm", array, BitsStored=bits, HighBit=bits - 1)
        dataset = pydicom.dcmread(path)
        dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID
        dataset.compress(syntax, generate_instance_uid=False)
        dataset.save_as(path, enforce_file_format=True)
        np.testing.assert_array_equal(read_image(path), array)

    @pytest.mark.parametrize(("dtype", "bits"), [(np.uint8, 8), (np.uint16, 12), (np.uint16, 16)])
    def test_lossless_jpeg_keeps_every_value(self, tmp_path, write_dicom, dtype, bits):
        array = ramp(dtype, bits)
        path = write_dicom(tmp_path / "a.dcm", array, BitsStored=bits, HighBit=bits - 1)
        rewrite(path, JPEGLosslessSV1, lossless_jpeg(array, bits))
        np.testing.assert_array_equal(read_image(path), array)

    @pytest.mark.parametrize("bits", [10, 12, 16])
    def test_signed_lossless_jpeg_has_its_sign_extended(self, tmp_path, write_dicom, bits):
        """A JPEG stream knows no sign: its values are the low bits of the stored ones."""
        values = RAMP - int(RAMP.mean())
        path = write_dicom(
            tmp_path / "a.dcm", values.astype(np.int16), BitsStored=bits, HighBit=bits - 1
        )
        frame = lossless_jpeg((values & ((1 << bits) - 1)).astype(np.uint16), bits)
        rewrite(path, JPEGLosslessSV1, frame)
        np.testing.assert_array_equal(read_image(path), values)

    @pytest.mark.parametrize("syntax", [JPEGBaseline8Bit, JPEGExtended12Bit])
    def test_lossy_jpeg_has_one_decoder_whatever_is_installed(self, tmp_path, write_dicom, syntax):
        array = ramp(np.uint8, 8)
        stream = io.BytesIO()
        Image.fromarray(array).save(stream, "JPEG", quality=60)
        path = write_dicom(tmp_path / "a.dcm", array)
        rewrite(path, syntax, stream.getvalue())
        expected = np.asarray(Image.open(stream))
        np.testing.assert_array_equal(read_image(path), expected)

    @pytest.mark.skipif(find_spec("libjpeg") is None, reason="needs the GPL's libjpeg")
    def test_12_bit_jpeg_is_read(self, tmp_path):
        found = read_image(as_radiograph("JPGExtended.dcm", tmp_path), "none")
        assert 255 < found.max() < 4096

    def test_a_missing_decoder_is_one_sentence_that_names_what_to_install(
        self, tmp_path, write_dicom
    ):
        array = ramp(np.uint16, 12)
        path = write_dicom(tmp_path / "a.dcm", array, BitsStored=12, HighBit=11)
        rewrite(path, JPEGLosslessSV1, lossless_jpeg(array, 12))
        other = as_radiograph("JPGExtended.dcm", tmp_path)
        # A None in sys.modules is how Python says that a package is not there.
        program = (
            "import sys\n"
            "sys.modules['pylibjpeg'] = sys.modules['gdcm'] = None\n"
            "from pathlib import Path\n"
            "from medclip_debias.data.images import read_image\n"
            "from medclip_debias.errors import UserError\n"
            "for name in sys.argv[1:]:\n"
            "    try:\n        read_image(Path(name))\n"
            "    except UserError as error:\n        print(error)\n"
        )
        words = [sys.executable, "-c", program, str(path), str(other)]
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
        lossless, twelve = done.stdout.splitlines()
        assert "a.dcm: is compressed as 'JPEG Lossless" in lossless
        assert lossless.endswith("run pip install 'medclip-debias[codecs]'.")
        assert "is compressed as 12-bit lossy JPEG, which only a package under the GPL-3" in twelve
        assert "pip install pylibjpeg pylibjpeg-libjpeg" in twelve

    def test_a_moving_picture_is_no_still_picture(self, tmp_path, write_dicom):
        path = write_dicom(tmp_path / "a.dcm", ramp(np.uint8, 8))
        rewrite(path, "1.2.840.10008.1.2.4.102", b"\0" * 64)
        with pytest.raises(UserError, match="not a still image"):
            read_image(path)


class TestRefused:
    @pytest.mark.parametrize("kind", ["JPEG", "JPEG2000"])
    def test_a_stream_larger_than_its_header_says_is_not_decoded(self, tmp_path, write_dicom, kind):
        stream = io.BytesIO()
        Image.new("L", (3000, 2000)).save(stream, kind)
        assert codestream_size(stream.getvalue()) == (2000, 3000)
        syntax = JPEGBaseline8Bit if kind == "JPEG" else JPEG2000Lossless
        path = write_dicom(tmp_path / "a.dcm", ramp(np.uint8, 8))
        rewrite(path, syntax, stream.getvalue())
        with pytest.raises(UserError, match="do not fit the rows and columns"):
            read_image(path)

    def test_a_deflated_file_is_read_but_not_when_it_unpacks_to_too_much(
        self, tmp_path, write_dicom, monkeypatch
    ):
        array = ramp(np.uint16, 12)
        path = write_dicom(tmp_path / "a.dcm", array)
        rewrite(path, DeflatedExplicitVRLittleEndian)
        np.testing.assert_array_equal(read_image(path), array)
        monkeypatch.setattr(elements, "MAX_UNPACKED", 4000)
        with pytest.raises(UserError, match=r"unpacks to more than 4,000 bytes"):
            read_image(path)

    def test_a_slope_that_is_no_number_is_refused(self, tmp_path, write_dicom):
        path = write_dicom(tmp_path / "a.dcm", ramp(np.uint8, 8), RescaleIntercept="0")
        dataset = pydicom.dcmread(path)
        dataset.RescaleSlope = "1e308"
        dataset.save_as(path)
        with pytest.raises(UserError, match=r"a\.dcm: holds values that are not numbers"):
            read_image(path)

    def test_messages_never_quote_the_header(self, tmp_path, write_dicom):
        secrets = {"PatientName": "Doe^Jane", "PatientID": "4711", "WindowCenter": "Doe"}
        path = write_dicom(tmp_path / "a.dcm", ramp(np.uint8, 8), **{"PatientName": "Doe^Jane"})
        content = path.read_bytes()
        place = content.index(b"Doe^Jane")
        damaged = [
            content[:place],
            content[: place + 40],
            content.replace(b"CS\x0c\0", b"FL\x0c\0"),
        ]
        for number, broken in enumerate(damaged):
            path.write_bytes(broken)
            with pytest.raises(UserError) as caught:
                read_image(path)
            assert not any(secret in str(caught.value) for secret in secrets.values()), number

    def test_a_device_is_no_file(self):
        with pytest.raises(UserError, match="is a device, not a regular file"):
            read_image(Path("/dev/zero"))


class TestWithoutPreamble:
    """Files of older archives: the elements alone, no preamble, no ``DICM``."""

    SYNTAXES = ("1.2.840.10008.1.2", "1.2.840.10008.1.2.1")

    @staticmethod
    def bare(tmp_path, syntax="1.2.840.10008.1.2", meta=False, picture=RAMP, **elements):
        stream = io.BytesIO()
        dataset = Dataset()
        dataset.SOPClassUID = "1.2.840.10008.5.1.4.1.1.1"
        dataset.SOPInstanceUID = "2.25.1"
        dataset.ViewPosition = "PA"
        dataset.Rows, dataset.Columns = picture.shape
        dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME1"
        dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit = 16, 12, 11
        dataset.PixelRepresentation = 0
        dataset.add_new("PixelData", "OW", picture.astype("<u2").tobytes())
        for name, value in elements.items():
            setattr(dataset, name, value)
        if meta:
            dataset.file_meta = pydicom.dataset.FileMetaDataset()
            dataset.file_meta.TransferSyntaxUID = UID(syntax)
            dataset.file_meta.MediaStorageSOPClassUID = dataset.SOPClassUID
            dataset.file_meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
        pydicom.dcmwrite(stream, dataset, implicit_vr=syntax == "1.2.840.10008.1.2")
        content = stream.getvalue()
        content = content[132:] if content[128:132] == b"DICM" else content
        assert content[:1] == (b"\x02" if meta else b"\x08")
        path = tmp_path / "bare.dcm"
        path.write_bytes(content)
        return path

    @pytest.mark.parametrize("meta", [False, True])
    @pytest.mark.parametrize("syntax", SYNTAXES)
    def test_one_whose_elements_fit_is_read(self, tmp_path, syntax, meta):
        path = self.bare(tmp_path, syntax, meta)
        np.testing.assert_array_equal(read_image(path), -RAMP.astype(float) + RAMP.max())
        assert view_position(path) == "PA"

    @pytest.mark.parametrize(
        ("elements", "sentence"),
        [
            ({"SOPClassUID": "1.2.840.10008.5.1.4.1.1.2"}, "this is not a DICOM, JPG or PNG"),
            ({"SOPClassUID": ""}, "this is not a DICOM, JPG or PNG"),
            ({"Rows": RAMP.shape[0] - 1}, "the pixels do not fit the rows and columns"),
            ({"BitsAllocated": 8, "BitsStored": 8}, "the pixels do not fit the rows and columns"),
            ({"Rows": None}, "the pixels do not fit the rows and columns"),
            ({"NumberOfFrames": "2"}, "the pixels do not fit the rows and columns"),
        ],
    )
    def test_one_whose_elements_do_not_fit_is_refused(self, tmp_path, elements, sentence):
        with pytest.raises(UserError, match=sentence):
            read_image(self.bare(tmp_path, **elements))

    def test_pixels_compressed_in_an_unnamed_way_are_refused(self, tmp_path):
        path = self.bare(tmp_path, "1.2.840.10008.1.2.1")
        dataset = pydicom.dcmread(path, force=True)
        dataset.PixelData = encapsulate([b"\xff\xd8\xff\xd9"])
        dataset["PixelData"].is_undefined_length = True
        stream = io.BytesIO()
        pydicom.dcmwrite(stream, dataset, implicit_vr=False)
        path.write_bytes(stream.getvalue())
        with pytest.raises(UserError, match="compressed in a way that it does not name"):
            read_image(path)

    @pytest.mark.parametrize("cut", [20, 100, 400, 3000])
    def test_a_truncated_one_is_refused(self, tmp_path, cut):
        path = self.bare(tmp_path)
        path.write_bytes(path.read_bytes()[:cut])
        with pytest.raises(UserError, match=str(path)):
            read_image(path)
