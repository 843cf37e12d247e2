"""Reading files: polarity, order of the DICOM steps, and refusal of what is not whole."""

import gzip
import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from medclip_debias.config import PrepareSettings
from medclip_debias.data.images import prepare_image, read_image, stretch
from medclip_debias.data.images.radiograph import Radiograph
from medclip_debias.errors import UserError

RAMP = (np.arange(60)[:, None] * 7 + np.arange(50)[None, :] * 3).astype(np.uint16)


def png(path, array, **options):
    Image.fromarray(array).save(path, **options)
    return path


class TestDicom:
    def test_a_blank_rescale_says_as_little_as_a_missing_one(self, tmp_path, write_dicom):
        plain = read_image(write_dicom(tmp_path / "a.dcm", RAMP))
        for blank in ({"RescaleSlope": "", "RescaleIntercept": ""}, {"RescaleIntercept": ""}):
            np.testing.assert_array_equal(
                read_image(write_dicom(tmp_path / "b.dcm", RAMP, **blank)), plain
            )

    def test_modality_then_window_then_inversion(self, tmp_path, write_dicom):
        path = write_dicom(
            tmp_path / "a.dcm",
            RAMP,
            RescaleSlope="2",
            RescaleIntercept="-100",
            WindowCenter="300",
            WindowWidth="200",
            PhotometricInterpretation="MONOCHROME1",
        )
        image = read_image(path)
        # DICOM PS3.3 C.11.2.1.2 on rescaled values, then the mirror
        x = 2.0 * RAMP - 100
        window = np.clip((x - 299.5) / 199 + 0.5, 0, 1)
        expected = 1 - window
        scaled = (image - image.min()) / (image.max() - image.min())
        np.testing.assert_allclose(scaled, expected, atol=1e-5)

    def test_a_gzipped_file_is_read(self, tmp_path, write_dicom):
        plain = write_dicom(tmp_path / "a.dcm", RAMP)
        packed = tmp_path / "a.dcm.gz"
        packed.write_bytes(gzip.compress(plain.read_bytes()))
        np.testing.assert_array_equal(read_image(packed), RAMP)
        packed.write_bytes(packed.read_bytes()[:-50])
        with pytest.raises(UserError, match=r"a\.dcm\.gz: the compressed file is truncated"):
            read_image(packed)

    @pytest.mark.parametrize(
        ("elements", "sentence"),
        [
            ({"NumberOfFrames": 2}, "several frames"),
            ({"PhotometricInterpretation": "PALETTE COLOR"}, "palette"),
            ({"PhotometricInterpretation": "RGB", "SamplesPerPixel": 3}, "colour image"),
            ({"PhotometricInterpretation": None}, "bright or dark"),
            ({"PixelData": None}, "no pixels"),
            ({"Rows": 30_000, "Columns": 30_000}, "larger than 20,000 pixels"),
            ({"WindowCenter": "1", "WindowWidth": "0"}, "display window"),
        ],
    )
    def test_what_is_no_single_grey_image_is_refused(
        self, tmp_path, write_dicom, elements, sentence
    ):
        path = write_dicom(tmp_path / "a.dcm", RAMP, **elements)
        with pytest.raises(UserError, match=sentence) as caught:
            read_image(path)
        assert str(path) in str(caught.value)

    @given(st.floats(0, 1, exclude_max=True))
    def test_a_truncated_file_is_refused_wherever_it_ends(self, tmp_path, write_dicom, share):
        whole = write_dicom(tmp_path / "a.dcm", RAMP).read_bytes()
        path = tmp_path / "cut.dcm"
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(UserError, match=r"cut\.dcm: "):
            read_image(path)

    def test_real_twins_of_other_polarity_are_negatives(self, shared_data):
        # The second file holds the very values of the first, marked MONOCHROME1.
        folder = shared_data / "dicom"
        two = read_image(next(folder.glob("txrv_1.2*.dcm")))
        one = read_image(folder / "txrv_Fake_MONOHR1.dcm")
        np.testing.assert_array_equal(one, 254 - two)
        # Display polarity: the air beside the shoulders is dark where it is right.
        assert two[:100, :100].mean() < two.mean()

    def test_a_real_file_and_its_true_negative_look_the_same(
        self, shared_data, tmp_path, write_dicom
    ):
        path = next((shared_data / "dicom").glob("txrv_1.2*.dcm"))
        image = read_image(path)
        negative = (254 - image).astype(np.uint8)
        twin = write_dicom(tmp_path / "a.dcm", negative, PhotometricInterpretation="MONOCHROME1")
        np.testing.assert_array_equal(read_image(twin), image)


class TestRaster:
    @pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
    def test_png_keeps_its_values(self, tmp_path, dtype):
        array = (RAMP // (1 if dtype == np.uint16 else 3)).astype(dtype)
        np.testing.assert_array_equal(read_image(png(tmp_path / "a.png", array)), array)

    def test_colour_becomes_grey_and_alpha_is_dropped(self, tmp_path):
        grey = (RAMP // 3).astype(np.uint8)
        rgb = np.stack([grey] * 3, axis=-1)
        alpha = np.concatenate([rgb, np.full((60, 50, 1), 7, np.uint8)], axis=-1)
        la = np.stack([grey, np.full_like(grey, 9)], axis=-1)
        for name, array in (("rgb", rgb), ("rgba", alpha), ("la", la)):
            image = read_image(png(tmp_path / f"{name}.png", array))
            np.testing.assert_array_equal(image, grey)

    def test_exif_orientation_is_respected(self, tmp_path):
        exif = Image.Exif()
        exif[0x0112] = 6  # the camera was turned: show it a quarter clockwise
        array = np.zeros((40, 60), np.uint8)
        array[:20, :30] = 255
        path = png(tmp_path / "a.jpg", array, exif=exif, quality=95)
        assert np.abs(read_image(path) - np.rot90(array, -1)).mean() < 3

    @pytest.mark.parametrize("name", ["a.jpg", "a.png"])
    @pytest.mark.parametrize("share", [0.02, 0.6])
    def test_a_truncated_file_is_refused(self, tmp_path, name, share):
        noise = np.random.default_rng(0).integers(0, 255, (80, 90), dtype=np.uint8)
        path = png(tmp_path / name, noise)
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        with pytest.raises(UserError, match=f"{name}: the image is truncated"):
            read_image(path)

    @pytest.mark.parametrize("sides", [(30_000, 100), (19_000, 19_000)])
    def test_a_header_of_absurd_size_is_refused_before_decoding(self, tmp_path, sides):
        header = struct.pack(">IIBBBBB", *sides, 8, 0, 0, 0, 0)
        stream = io.BytesIO(b"\x89PNG\r\n\x1a\n")
        stream.seek(0, 2)
        for kind, data in ((b"IHDR", header), (b"IDAT", zlib.compress(b"\0")), (b"IEND", b"")):
            check = zlib.crc32(kind + data)
            stream.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", check))
        (tmp_path / "a.png").write_bytes(stream.getvalue())
        with pytest.raises(UserError, match="larger than 20,000 pixels per side or 200 megapixels"):
            read_image(tmp_path / "a.png")


class TestPrepare:
    def test_without_clipping_it_is_min_max(self):
        grey = stretch(RAMP.astype(np.float32), PrepareSettings(clip=(0, 100)))
        expected = np.rint((RAMP - RAMP.min()) / (RAMP.max() - RAMP.min()) * 255)
        assert np.abs(grey - expected).max() <= 1  # ties may round either way in float32
        assert (grey.min(), grey.max()) == (0, 255)

    @pytest.mark.parametrize("kind", ["whole", "fractional", "negative"])
    def test_clipping_agrees_with_numpy_percentiles(self, kind):
        values = np.random.default_rng(1).integers(0, 4096, (71, 53)).astype(np.float32)
        values = {"whole": values, "fractional": values / 7, "negative": values - 2000}[kind]
        low, high = np.percentile(values, (2.0, 97.3))
        expected = np.clip((values - low) / (high - low), 0, 1) * 255
        grey = stretch(values, PrepareSettings(clip=(2.0, 97.3)))
        assert np.abs(grey - expected).max() <= 0.501

    @pytest.mark.parametrize("inverted", [False, True])
    def test_stored_levels_are_kept_where_they_are_of_8_bits(self, inverted):
        image = np.random.default_rng(3).integers(30, 190, (40, 50)).astype(np.uint8)
        stored = PrepareSettings(levels="as_stored")
        expected = 255 - image if inverted else image
        found = stretch(Radiograph.of(image, inverted=inverted), stored)
        np.testing.assert_array_equal(found, expected)
        deep = image.astype(np.uint16) * 16
        expected = stretch(deep, PrepareSettings())
        np.testing.assert_array_equal(stretch(deep, stored), expected)
        with pytest.raises(ValueError, match="exclude each other"):
            PrepareSettings(levels="as_stored", equalize=True)

    def test_one_outlier_does_not_take_the_grey_levels(self):
        image = RAMP.astype(np.float32)
        image[3, 4] = 65535
        assert len(np.unique(stretch(image, PrepareSettings()))) > 200

    def test_equalisation_is_that_of_opencv(self):
        image = np.random.default_rng(2).gamma(2, 40, (64, 64)).clip(0, 255).astype(np.uint8)
        image[0, :2] = (0, 255)
        grey = stretch(image, PrepareSettings(clip=(0, 100), equalize=True))
        np.testing.assert_array_equal(grey, cv2.equalizeHist(image))

    def test_padding_is_black_and_shape_is_kept(self):
        image = np.full((20, 60), 200.0, np.float32)
        image[0, 0] = 0
        square = prepare_image(image, PrepareSettings(size=60, clip=(0, 100)))
        assert square.shape == (60, 60)
        assert square[:20].max() == 0
        assert square[40:].max() == 0
        assert square[21:39].min() == 255

    def test_a_picture_that_is_all_outlier_is_refused(self):
        image = np.zeros((50, 50), np.float32)
        image[0, 0] = 1
        with pytest.raises(UserError, match="single grey value"):
            prepare_image(image, PrepareSettings())
