"""The renderer's functions against numpy's, OpenCV's and the exact values of their tables."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest

from medclip_debias.phantom import exact


def test_functions_are_numpys_to_the_last_bits() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-30, 0, 20_000)
    assert np.abs(exact.exp(x) / np.exp(x) - 1).max() < 5e-16
    assert exact.exp([-800.0, 0.0]).tolist() == [0.0, 1.0]
    x = np.append(rng.uniform(0, 2, 20_000), 1e-300)
    assert np.abs(exact.log(x) - np.log(x)).max() < 1e-15 * np.abs(np.log(x)).max()
    x = np.append(rng.uniform(0, 2, 20_000), 0.0)
    for exponent in (0.85, 1.0, 1.2, 2.4):
        np.testing.assert_allclose(exact.power(x, exponent), x**exponent, rtol=0, atol=3e-15)
    x = rng.uniform(-20, 20, 20_000)
    np.testing.assert_allclose(exact.sin(x), np.sin(x), rtol=0, atol=3e-15)
    np.testing.assert_allclose(exact.cos(x), np.cos(x), rtol=0, atol=3e-15)


@pytest.mark.parametrize(
    ("given", "wanted"), [((4, 4), (90, 71)), ((9, 7), (12, 5)), ((5, 5), (3, 2))]
)
def test_enlarging_is_opencvs_cubic_interpolation(
    given: tuple[int, int], wanted: tuple[int, int]
) -> None:
    coarse = np.random.default_rng(1).normal(size=given)
    theirs = cv2.resize(coarse, wanted[::-1], interpolation=cv2.INTER_CUBIC)
    np.testing.assert_allclose(exact.enlarge(coarse, wanted), theirs, rtol=0, atol=1e-14)


def test_blurring_is_opencvs() -> None:
    image = np.random.default_rng(2).random((31, 47))
    for sigma in (0.4, 0.63, 0.8):
        theirs = cv2.GaussianBlur(image, (5, 5), sigma)
        np.testing.assert_allclose(exact.blur(image, sigma), theirs, rtol=0, atol=1e-15)


def test_grain_is_numpys_stream_of_normal_numbers() -> None:
    """All but the tail to the bit; there numpy's log1p in float32 is up to a last bit off."""
    for seed in range(12):
        ours, theirs = exact.Generator([seed]), np.random.default_rng([seed])
        for shape in ((180, 200), (1, 1), (3, 5)):
            found, wanted = ours.grain(shape), theirs.standard_normal(shape, dtype=np.float32)
            core = np.abs(wanted) < 3.65
            np.testing.assert_array_equal(found[core], wanted[core])
            np.testing.assert_allclose(found, wanted, rtol=2e-7)
        assert ours.random() == theirs.random(), "and takes as many words from it"
        assert ours.uniform(0.3, 4.1) == theirs.uniform(0.3, 4.1)
        assert ours.normal(0.3, 4.1, 3).tolist() == theirs.normal(0.3, 4.1, 3).tolist()


def test_a_word_on_the_very_edge_of_its_strip_is_read_as_numpy_reads_it() -> None:
    shape = (560, 500)  # of this key, number 275,034 is
    found = exact.Generator([11]).grain(shape)
    wanted = np.random.default_rng([11]).standard_normal(shape, dtype=np.float32)
    np.testing.assert_allclose(found, wanted, rtol=2e-7)


def test_another_librarys_exp_and_log_would_give_the_same_tables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables = exact._ziggurat()
    exp, log = math.exp, math.log
    for off in (1 - 4e-16, 1 + 4e-16):  # two units in the last place
        monkeypatch.setattr(math, "exp", lambda x, off=off: exp(x) * off)
        monkeypatch.setattr(math, "log", lambda x, off=off: log(x) * off)
        for here, there in zip(tables, exact._ziggurat(), strict=True):
            np.testing.assert_array_equal(here, there)
