"""DICOM files: values from their bits in every form, and what is refused in which words."""

import gzip
import io

import numpy as np
import pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from pydicom.data import get_testdata_file
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
from medclip_debias.data.images import elements, read_radiograph
from medclip_debias.data.images.dicom import NO_HIGH_BIT, NOT_SQUARE, TWO_POLARITIES
from medclip_debias.data.images.headers import view_position
from medclip_debias.errors import UserError

RAMP = (np.arange(60)[:, None] * 7 + np.arange(50)[None, :] * 3).astype(np.uint16)
CR, CT = "1.2.840.10008.5.1.4.1.1.1", "1.2.840.10008.5.1.4.1.1.2"


def ramp(dtype, bits):
    """A picture over the whole range of ``bits``-bit values."""
    picture = np.rint(RAMP * (((1 << bits) - 1) / RAMP.max())).astype(np.int64)
    if np.issubdtype(dtype, np.signedinteger):
        picture -= 1 << (bits - 1)
    return picture.astype(dtype)


def rewrite(path, syntax, frame=None):
    """Change the transfer syntax of the file, and its pixels where ``frame`` is given."""
    dataset = pydicom.dcmread(path)
    dataset.file_meta.TransferSyntaxUID = UID(syntax)
    if frame is not None:
        dataset.PixelData = encapsulate([frame])
        dataset["PixelData"].is_undefined_length = True
    dataset.save_as(path, enforce_file_format=True)
    return path


def compress(path, syntax, **changes):
    """Compress by pydicom, and change elements behind its back."""
    dataset = pydicom.dcmread(path)
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID
    dataset.compress(syntax, generate_instance_uid=False)
    for name, value in changes.items():
        setattr(dataset, name, value)
    dataset.save_as(path, enforce_file_format=True)
    return path


class TestStoredValues:
    @settings(max_examples=30)
    @given(st.data())
    def test_they_are_read_from_their_bits_whatever_lies_in_the_others(
        self, tmp_path, write_dicom, data
    ):
        """In bits ``high - stored + 1 .. high`` of words, noise in all other bits."""
        allocated = data.draw(st.sampled_from([8, 16, 32]))
        stored = data.draw(st.integers(6, min(allocated, 20)))
        high = data.draw(st.integers(stored - 1, allocated - 1))
        signed = data.draw(st.booleans())
        form = data.draw(st.sampled_from(["plain", "big", "rle"][: 3 if allocated < 32 else 2]))
        random = np.random.default_rng(data.draw(st.integers(0, 1000)))
        low = -(1 << (stored - 1)) if signed else 0
        values = random.integers(low, low + (1 << stored), (24, 20))
        mask, place = (1 << stored) - 1, high - stored + 1
        noise = random.integers(0, 1 << 32, values.shape) & ~(mask << place)
        words = ((values & mask) << place | noise & ((1 << allocated) - 1)).astype(
            f"u{allocated // 8}"
        )
        bits = {"BitsStored": stored, "HighBit": high}
        every = {"BitsStored": allocated, "HighBit": allocated - 1} if form == "rle" else bits
        path = tmp_path / "a.dcm"
        write_dicom(path, words, PixelRepresentation=int(signed), **every)
        if form == "rle":
            compress(path, RLELossless, **bits)
        elif form == "big":
            dataset = pydicom.dcmread(path)
            dataset.PixelData = words.byteswap().tobytes()
            dataset["PixelData"].VR = "OB" if allocated == 8 else "OW"
            dataset.file_meta.TransferSyntaxUID = ExplicitVRBigEndian
            pydicom.dcmwrite(path, dataset, little_endian=False, implicit_vr=False)
        np.testing.assert_array_equal(read_radiograph(path).display(), values)

    @pytest.mark.filterwarnings("ignore:Invalid value for VR")
    @pytest.mark.parametrize(
        "silent",
        [
            {},
            *({"Modality": modality} for modality in ("DX", "OT", "cr ", "")),
            {"RescaleSlope": "", "RescaleIntercept": ""},
            {"RescaleIntercept": ""},
            {"PixelPaddingValue": 65535},
        ],
    )
    def test_elements_that_say_nothing_change_none(self, tmp_path, write_dicom, silent):
        image = read_radiograph(write_dicom(tmp_path / "a.dcm", RAMP, **silent))
        np.testing.assert_array_equal(image.display(), RAMP)
        assert image.range == (RAMP.min(), RAMP.max())

    @pytest.mark.parametrize(
        ("number", "odd", "said"),
        [
            (2, {}, ""),
            (2, {"HighBit": None}, NO_HIGH_BIT),
            (2, {"PresentationLUTShape": "IDENTITY"}, ""),
            (2, {"PresentationLUTShape": "INVERSE"}, TWO_POLARITIES),
            (1, {"PresentationLUTShape": "INVERSE"}, ""),
            (1, {"PresentationLUTShape": "IDENTITY"}, TWO_POLARITIES),
            (2, {"PixelAspectRatio": ["2", "1"]}, NOT_SQUARE),
            (2, {"ImagerPixelSpacing": ["0.2", "0.1"]}, NOT_SQUARE),
            (2, {"PixelAspectRatio": ["7", "7"], "PixelSpacing": ["0", "0"]}, ""),
        ],
    )
    def test_a_header_that_lacks_one_thing_is_mended_and_said(
        self, tmp_path, write_dicom, number, odd, said
    ):
        how = {"BitsStored": 12, "HighBit": 11, "PhotometricInterpretation": f"MONOCHROME{number}"}
        image = read_radiograph(write_dicom(tmp_path / "a.dcm", RAMP, **how | odd))
        np.testing.assert_array_equal(image.display(), RAMP.max() - RAMP if number == 1 else RAMP)
        assert image.mended == said

    def test_a_gzipped_file_is_read(self, tmp_path, write_dicom):
        packed = tmp_path / "a.dcm.gz"
        packed.write_bytes(gzip.compress(write_dicom(tmp_path / "a.dcm", RAMP).read_bytes()))
        np.testing.assert_array_equal(read_radiograph(packed).display(), RAMP)
        packed.write_bytes(packed.read_bytes()[:-50])
        with pytest.raises(UserError, match=r"a\.dcm\.gz: the compressed file is truncated"):
            read_radiograph(packed)


class TestCompressed:
    @pytest.mark.parametrize("name", ["RLE", "jp2klossless", "jpeg_ls_lossless"])
    def test_lossless_forms_of_a_real_file_equal_it(self, tmp_path, name):
        """Public pairs: the same slice plain and compressed by other people's programs."""
        plain = pydicom.dcmread(get_testdata_file("MR_small.dcm", download=False)).pixel_array
        packed = pydicom.dcmread(get_testdata_file(f"MR_small_{name}.dcm", download=False))
        packed.Modality, packed.SOPClassUID = "CR", CR
        packed.save_as(tmp_path / "a.dcm")
        inside = plain != packed.get("PixelPaddingValue")
        found = read_radiograph(tmp_path / "a.dcm", window="none").display()
        np.testing.assert_array_equal(found[inside], plain[inside])
        assert inside.mean() > 0.5

    @pytest.mark.parametrize("syntax", [JPEG2000Lossless, JPEGLSLossless, JPEGLosslessSV1])
    @pytest.mark.parametrize(
        ("dtype", "bits"), [(np.uint8, 8), (np.int16, 10), (np.int16, 16), (np.uint16, 12)]
    )
    def test_lossless_forms_keep_every_value(self, tmp_path, write_dicom, syntax, dtype, bits):
        array = ramp(dtype, bits)
        path = write_dicom(tmp_path / "a.dcm", array, BitsStored=bits, HighBit=bits - 1)
        if syntax == JPEGLosslessSV1:  # such a stream knows no sign: the low bits of the values
            low = array.astype(np.int64) & ((1 << bits) - 1)
            rewrite(path, syntax, lossless_jpeg(low, bits))
        else:
            compress(path, syntax)
        np.testing.assert_array_equal(read_radiograph(path).display(), array)

    @pytest.mark.parametrize("syntax", [JPEGBaseline8Bit, JPEGExtended12Bit])
    def test_lossy_jpeg_has_one_decoder_whatever_is_installed(self, tmp_path, write_dicom, syntax):
        stream = io.BytesIO()
        Image.fromarray(ramp(np.uint8, 8)).save(stream, "JPEG", quality=60)
        path = write_dicom(tmp_path / "a.dcm", ramp(np.uint8, 8))
        rewrite(path, syntax, stream.getvalue())
        np.testing.assert_array_equal(
            read_radiograph(path).display(), np.asarray(Image.open(stream))
        )

    @pytest.mark.parametrize(
        ("syntax", "sentence"),
        [
            (JPEGLosslessSV1, r"'JPEG Lossless.*run pip install 'medclip-debias\[codecs\]'\.$"),
            (JPEGExtended12Bit, r"12-bit lossy JPEG, .* under the GPL-3 .* pylibjpeg-libjpeg"),
            ("1.2.840.10008.1.2.4.102", "'MPEG-4 .* not a still image"),
        ],
    )
    def test_what_nothing_here_decodes_is_one_sentence(
        self, tmp_path, write_dicom, monkeypatch, syntax, sentence
    ):
        monkeypatch.setattr("pydicom.pixels.decoders.base.Decoder.available_plugins", ())
        path = write_dicom(tmp_path / "a.dcm", RAMP, BitsStored=12, HighBit=11)
        rewrite(path, syntax, lossless_jpeg(RAMP, 12))
        with pytest.raises(UserError, match=rf"a\.dcm: is compressed as {sentence}"):
            read_radiograph(path)


REFUSED = [
    ({"NumberOfFrames": 2}, "several frames"),
    ({"PhotometricInterpretation": "PALETTE COLOR"}, "palette"),
    ({"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3}, "colour image"),
    ({"PhotometricInterpretation": None}, "bright or dark"),
    ({"PixelData": None}, "no pixels"),
    ({"PixelData": None, "FloatPixelData": bytes(12_000)}, "floating-point pixels"),
    ({"Rows": 30_000, "Columns": 30_000}, "larger than 20,000 pixels"),
    ({"WindowCenter": "1", "WindowWidth": "0"}, "display window"),
    ({"RescaleIntercept": "0", "RescaleSlope": "1e308"}, "values that are not numbers"),
    ({"BitsStored": 12, "HighBit": 10}, "contradict each other"),
    ({"BitsStored": 17, "HighBit": 16}, "contradict each other"),
    ({"BitsStored": 0, "HighBit": 15}, "contradict each other"),
    ({"BitsAllocated": 1, "BitsStored": 1, "HighBit": 0}, "only black and white"),
    ({"SOPClassUID": CT}, "not a radiograph; leave it out"),
    ({"Modality": "CT"}, "says a CT image, not a radiograph; leave it out"),
    ({"Modality": "Doe^Jane"}, "says an image of another kind, not a radiograph"),
]


class TestRefused:
    @pytest.mark.filterwarnings("ignore:Invalid value for VR")
    @pytest.mark.parametrize(("wrong", "sentence"), REFUSED, ids=[words for _, words in REFUSED])
    def test_what_is_no_grey_radiograph(self, tmp_path, write_dicom, wrong, sentence):
        path = write_dicom(tmp_path / "a.dcm", RAMP, **wrong)
        with pytest.raises(UserError, match=sentence) as caught:
            read_radiograph(path)
        assert str(path) in str(caught.value)
        assert "Doe" not in str(caught.value)

    def test_a_file_of_padding_alone(self, tmp_path, write_dicom):
        path = write_dicom(tmp_path / "a.dcm", np.full_like(RAMP, 7), PixelPaddingValue=7)
        with pytest.raises(UserError, match="contains only padding"):
            read_radiograph(path)

    def test_compressed_values_of_unknown_place(self, tmp_path, write_dicom):
        path = write_dicom(tmp_path / "a.dcm", RAMP, BitsStored=12, HighBit=11)
        with pytest.raises(UserError, match="HighBit is not BitsStored - 1"):
            read_radiograph(compress(path, JPEGLSLossless, HighBit=15))

    @settings(max_examples=15)
    @given(st.floats(0, 1, exclude_max=True))
    def test_a_truncated_file_wherever_it_ends(self, tmp_path, write_dicom, share):
        whole = write_dicom(tmp_path / "a.dcm", RAMP).read_bytes()
        path = tmp_path / "cut.dcm"
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(UserError, match=r"cut\.dcm: "):
            read_radiograph(path)

    @pytest.mark.parametrize("kind", ["JPEG", "JPEG2000"])
    def test_a_stream_larger_than_its_header_says(self, tmp_path, write_dicom, kind):
        stream = io.BytesIO()
        Image.new("L", (300, 200)).save(stream, kind)
        syntax = JPEGBaseline8Bit if kind == "JPEG" else JPEG2000Lossless
        path = write_dicom(tmp_path / "a.dcm", ramp(np.uint8, 8))
        rewrite(path, syntax, stream.getvalue())
        with pytest.raises(UserError, match="do not fit the rows and columns"):
            read_radiograph(path)

    def test_a_deflated_file_that_unpacks_to_too_much(self, tmp_path, write_dicom, monkeypatch):
        path = rewrite(write_dicom(tmp_path / "a.dcm", RAMP), DeflatedExplicitVRLittleEndian)
        np.testing.assert_array_equal(read_radiograph(path).display(), RAMP)
        monkeypatch.setattr(elements, "MAX_UNPACKED", 4000)
        with pytest.raises(UserError, match=r"unpacks to more than 4,000 bytes"):
            read_radiograph(path)

    def test_messages_never_quote_the_header(self, tmp_path, write_dicom):
        path = write_dicom(tmp_path / "a.dcm", RAMP, PatientName="Doe^Jane")
        content = path.read_bytes()
        place = content.index(b"Doe^Jane")
        for broken in (
            content[:place],
            content[: place + 40],
            content.replace(b"CS\x0c\0", b"FL\x0c\0"),
        ):
            path.write_bytes(broken)
            with pytest.raises(UserError) as caught:
                read_radiograph(path)
            assert "Doe" not in str(caught.value)


class TestWithoutPreamble:
    """Files of older archives: the elements alone, no preamble, no ``DICM``."""

    @pytest.fixture
    def bare(self, tmp_path, write_dicom):
        """A function that writes such a file."""

        def write(implicit=False, meta=False, **elements):
            ids = {"SOPClassUID": CR, "SOPInstanceUID": "2.25.1", "ViewPosition": "PA"}
            ids |= {"BitsStored": 12, "HighBit": 11, "PhotometricInterpretation": "MONOCHROME1"}
            path = write_dicom(tmp_path / "bare.dcm", RAMP, **ids | elements)
            if meta:
                path.write_bytes(path.read_bytes()[132:])
                return path
            dataset = pydicom.dcmread(path)
            del dataset.file_meta
            dataset.preamble = None
            dataset["PixelData"].is_undefined_length = dataset.PixelData[:2] == b"\xfe\xff"
            pydicom.dcmwrite(path, dataset, implicit_vr=implicit, little_endian=True)
            assert path.read_bytes()[:1] == b"\x08"
            return path

        return write

    @pytest.mark.parametrize("how", [{"implicit": True}, {}, {"meta": True}])
    def test_one_whose_elements_fit_is_read(self, bare, how):
        path = bare(**how)
        np.testing.assert_array_equal(
            read_radiograph(path).display(), -RAMP.astype(float) + RAMP.max()
        )
        assert view_position(path) == "PA"

    @pytest.mark.parametrize(
        ("elements", "sentence"),
        [
            ({"SOPClassUID": CT}, "this is not a DICOM, JPG or PNG"),
            ({"SOPClassUID": ""}, "this is not a DICOM, JPG or PNG"),
            ({"Rows": RAMP.shape[0] - 1}, "the pixels do not fit the rows and columns"),
            ({"Rows": None}, "the pixels do not fit the rows and columns"),
            ({"NumberOfFrames": "2"}, "the pixels do not fit the rows and columns"),
            ({"PixelData": encapsulate([b"\xff\xd8\xff\xd9"])}, "a way that it does not name"),
        ],
    )
    def test_one_whose_elements_do_not_fit_is_refused(self, bare, elements, sentence):
        path = bare(**elements)
        with pytest.raises(UserError, match=sentence):
            read_radiograph(path)
