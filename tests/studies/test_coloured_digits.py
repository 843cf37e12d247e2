"""Digits on coloured backgrounds: what is painted, what captions say, what training gives."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from studies.coloured_digits import accuracy, coloured

DATA = load_digits()
PIXELS, DIGITS = DATA.data / 16, DATA.target


def test_colours_agree_as_often_as_asked_and_digits_stay_visible():
    made = coloured(np.random.default_rng(0), PIXELS, DIGITS, 0.9, (1.0, 1.0))
    assert abs(made.against.mean() - 0.1) < 0.03
    painted = made.images.reshape(-1, 64, 3)
    background = PIXELS == 0
    red = painted[..., 0] > painted[..., 2]
    shown_red = (red & background).sum(axis=1) > background.sum(axis=1) / 2
    assert np.array_equal(shown_red, (made.labels == 1) != made.against)
    assert np.allclose(painted[PIXELS == 1], 1.0)


def test_captions_name_what_they_are_asked_to():
    exact = coloured(np.random.default_rng(1), PIXELS, DIGITS, 0.9, (1.0, 0.0)).captions
    assert np.array_equal(exact[:, 0], DIGITS - 4.5)
    assert set(exact[:, 1]) == {-1.5, 1.5}
    vague = coloured(np.random.default_rng(1), PIXELS, DIGITS, 0.9, (0.0, 1.0)).captions
    assert set(vague[:, 0]) == {-2.5, 2.5}
    assert set(vague[:, 1]) == {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5}


def test_training_is_repeatable_and_learns_its_own_distribution():
    once = accuracy("supervised", (1.0, 1.0), agree=0.995, steps=150, seed=0)
    again = accuracy("supervised", (1.0, 1.0), agree=0.995, steps=150, seed=0)
    assert once == again
    assert once["inside"] > 0.95
    learned = accuracy("contrastive", (0.0, 0.0), agree=0.995, steps=150, seed=0)
    assert learned["inside"] > 0.9
    assert all(np.isfinite(list(learned.values())))
