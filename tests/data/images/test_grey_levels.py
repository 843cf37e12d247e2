"""From stored values to grey levels: tables, windows, padding, clipping; by plain arithmetic."""

import cv2
import numpy as np
import pydicom
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydicom.dataset import Dataset

from medclip_debias.config import PrepareSettings
from medclip_debias.data.images import prepare_image, read_radiograph
from medclip_debias.data.images.radiograph import Radiograph
from medclip_debias.errors import UserError

RAMP = (np.arange(60)[:, None] * 7 + np.arange(50)[None, :] * 3).astype(np.uint16)
POLARITY = {False: "MONOCHROME2", True: "MONOCHROME1"}


def test_of_several_windows_the_first_counts(tmp_path, write_dicom):
    several = {"WindowCenter": ["300", "90"], "WindowWidth": ["200", "30"]}
    first = {"WindowCenter": "300", "WindowWidth": "200"}
    a = write_dicom(tmp_path / "a.dcm", RAMP, **several)
    b = write_dicom(tmp_path / "b.dcm", RAMP, **first)
    np.testing.assert_array_equal(read_radiograph(a).display(), read_radiograph(b).display())
    np.testing.assert_array_equal(read_radiograph(a, window="none").display(), RAMP)


def lut(values, first):
    item = Dataset()
    item.LUTDescriptor = [len(values), first, 16]
    item.LUTData = np.asarray(values, "<u2").tobytes()
    return item


@pytest.mark.parametrize("inverted", [False, True])
def test_luts_are_looked_up_in_order(tmp_path, write_dicom, inverted):
    array = RAMP // 3
    modality = np.arange(256) ** 2 // 3  # 0..21675
    voi = (40000 * np.sqrt(np.linspace(0, 1, 20000))).astype(int)
    path = write_dicom(
        tmp_path / "a.dcm",
        array,
        ModalityLUTSequence=[lut(modality, 0)],
        VOILUTSequence=[lut(voi, 500), lut(voi[::-1], 0)],
        PhotometricInterpretation=POLARITY[inverted],
    )
    expected = voi[np.clip(modality[array] - 500, 0, len(voi) - 1)]
    if inverted:
        expected = expected.max() + expected.min() - expected
    np.testing.assert_array_equal(read_radiograph(path).display(), expected)


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1000),
    signed=st.booleans(),
    inverted=st.booleans(),
    slope=st.sampled_from([None, "2", "0.37", "-1.5"]),
    window=st.sampled_from([None, ("700", "900"), ("0", "2500")]),
    clip=st.sampled_from([(0.0, 100.0), (0.5, 99.5), (2.0, 91.3)]),
)
def test_grey_levels_are_those_of_plain_arithmetic(
    tmp_path, write_dicom, seed, signed, inverted, slope, window, clip
):
    """Against the same steps on every pixel in float64, with numpy's percentiles."""
    array = np.random.default_rng(seed).normal(800, 300, (40, 30)).clip(0, 4095)
    array = (array - 900 * signed).astype(np.int16 if signed else np.uint16)
    elements = {"PhotometricInterpretation": POLARITY[inverted]}
    values = array.astype(float)
    if slope is not None:
        elements |= {"RescaleSlope": slope, "RescaleIntercept": "-7"}
        values = values * float(slope) - 7
    if window is not None:  # DICOM PS3.3, C.11.2.1.2
        elements |= dict(zip(("WindowCenter", "WindowWidth"), window, strict=True))
        centre, width = (float(number) for number in window)
        values = np.clip((values - centre + 0.5) / (width - 1) + 0.5, 0, 1)
    values = -values if inverted else values
    low, high = np.percentile(values, clip)
    if high - low < 1e-6:
        return
    expected = (np.clip(values, low, high) - low) / (high - low) * 255
    path = write_dicom(tmp_path / "a.dcm", array, **elements)
    grey = read_radiograph(path).stretched(PrepareSettings(clip=clip))
    assert np.abs(grey - expected).max() <= 0.501


@pytest.mark.parametrize("inverted", [False, True])
def test_the_recipe_of_mimic_cxr_jpg_is_met_to_the_byte(tmp_path, write_dicom, inverted):
    """Subtract the lowest, divide by the highest, cut to 8 bit, invert, equalise."""
    array = np.random.default_rng(4).gamma(3, 300, (90, 70)).clip(0, 4095).astype(np.uint16)
    scaled = array - array.min()
    scaled = (scaled / scaled.max() * 255).astype(np.uint8)
    window = {"WindowCenter": "1000", "WindowWidth": "500"}
    path = write_dicom(
        tmp_path / "a.dcm", array, PhotometricInterpretation=POLARITY[inverted], **window
    )
    recipe = PrepareSettings(clip=(0, 100), equalize=True, window="none")
    found = read_radiograph(path, recipe.window).stretched(recipe)
    np.testing.assert_array_equal(found, cv2.equalizeHist(255 - scaled if inverted else scaled))


def test_real_twins_of_other_polarity_are_negatives(shared_data):
    # The second file holds the very values of the first, marked MONOCHROME1.
    folder = shared_data / "dicom"
    two = read_radiograph(next(folder.glob("txrv_1.2*.dcm"))).display()
    one = read_radiograph(folder / "txrv_Fake_MONOHR1.dcm").display()
    np.testing.assert_array_equal(one, 254 - two)
    # Display polarity: the air beside the shoulders is dark where it is right.
    assert two[:100, :100].mean() < two.mean()


@pytest.mark.parametrize("kind", ["whole", "fractional", "negative"])
def test_arrays_are_clipped_at_numpys_percentiles(kind):
    values = np.random.default_rng(1).integers(0, 4096, (71, 53)).astype(np.float32)
    values = {"whole": values, "fractional": values / 7, "negative": values - 2000}[kind]
    low, high = np.percentile(values, (2.0, 97.3))
    expected = np.clip((values - low) / (high - low), 0, 1) * 255
    grey = Radiograph.of(values).stretched(PrepareSettings(clip=(2.0, 97.3)))
    assert np.abs(grey - expected).max() <= 0.501


@pytest.mark.parametrize("inverted", [False, True])
def test_stored_levels_are_kept_where_they_are_of_8_bits(inverted):
    image = np.random.default_rng(3).integers(30, 190, (40, 50)).astype(np.uint8)
    stored = PrepareSettings(levels="as_stored")
    expected = 255 - image if inverted else image
    found = Radiograph.of(image, inverted=inverted).stretched(stored)
    np.testing.assert_array_equal(found, expected)
    deep = Radiograph.of(image.astype(np.uint16) * 16)
    np.testing.assert_array_equal(deep.stretched(stored), deep.stretched(PrepareSettings()))
    with pytest.raises(ValueError, match="exclude each other"):
        PrepareSettings(levels="as_stored", equalize=True)


def test_a_picture_that_is_all_outlier_is_refused():
    image = np.zeros((50, 50), np.float32)
    image[0, 0] = 1
    with pytest.raises(UserError, match="single grey value"):
        prepare_image(Radiograph.of(image), PrepareSettings())


def test_a_slope_or_an_intercept_alone_counts(tmp_path, write_dicom):
    low, high = int(RAMP.min()), int(RAMP.max())
    slope = write_dicom(tmp_path / "slope.dcm", RAMP, RescaleSlope="-1")
    assert read_radiograph(slope, "none").range == (-high, -low)
    intercept = write_dicom(tmp_path / "intercept.dcm", RAMP, RescaleIntercept="-7")
    assert read_radiograph(intercept, "none").range == (low - 7, high - 7)


def test_a_window_that_hides_the_whole_picture_is_named(tmp_path, write_dicom):
    path = write_dicom(tmp_path / "a.dcm", RAMP + 5000, WindowCenter="40", WindowWidth="400")
    with pytest.raises(UserError, match="single grey value; its display window makes them so"):
        read_radiograph(path)
    assert read_radiograph(path, "none").range == (5000, 5000 + RAMP.max())


class TestPadding:
    @settings(max_examples=25)
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
        elements = {"PixelPaddingValue": value, "PhotometricInterpretation": POLARITY[inverted]}
        if limit is not None:  # the range reaches from the value to the limit, up or down
            padded[:, :10] = value + np.sign(limit) * random.integers(0, abs(limit) + 1, (40, 10))
            elements["PixelPaddingRangeLimit"] = value + limit
        array = padded.astype(np.int16 if signed else np.uint16)
        image = read_radiograph(write_dicom(tmp_path / "a.dcm", array, **elements))
        shown = inside.max() - inside if inverted else inside - inside.min()
        expected = np.zeros((40, 40))
        expected[:, 10:] = shown / shown.max() * 255
        assert image.range == (inside.min(), inside.max())
        plain = PrepareSettings(size=40, clip=(0, 100), window="none")
        assert np.abs(prepare_image(image, plain) - expected).max() <= 0.501
        low, high = np.percentile(-inside if inverted else inside, (0.5, 99.5))
        ends = sorted(image.percentiles((0.5, 99.5)))
        assert ends == pytest.approx(sorted((-low, -high) if inverted else (low, high)))

    @pytest.mark.parametrize(
        ("written", "dtype", "bits"),
        [(-2000, np.uint16, 16), (63536, np.int16, 16), (63536, np.uint16, 12)],
    )
    def test_a_value_written_with_the_other_sign_is_understood(
        self, tmp_path, write_dicom, written, dtype, bits
    ):
        array = RAMP % 900 + 100
        array[:, :5] = 63536
        path = write_dicom(tmp_path / "a.dcm", array.view(dtype), BitsStored=bits, HighBit=bits - 1)
        dataset = pydicom.dcmread(path)
        dataset.add_new(0x00280120, "US" if written > 0 else "SS", written)
        dataset.save_as(path, enforce_file_format=True)
        inside = array[:, 5:]
        assert read_radiograph(path).range == (inside.min(), inside.max())

    def test_a_window_and_a_slope_do_not_bring_it_back(self, tmp_path, write_dicom):
        array = RAMP.astype(np.int16) + 1000
        array[:7] = -30000
        how = {"WindowCenter": "3000", "WindowWidth": "5000", "RescaleSlope": "2"}
        how |= {"RescaleIntercept": "5", "PixelPaddingValue": -30000}
        found = read_radiograph(write_dicom(tmp_path / "a.dcm", array, **how)).display()
        assert (found[:7] == found[7:].min()).all()
