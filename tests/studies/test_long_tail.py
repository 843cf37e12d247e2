"""The long-tailed set, its class probabilities, its views; training only for sanity."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from studies.images import digits, view
from studies.long_tail import LongTail, etas, long_tailed


@pytest.mark.parametrize("classes", [8, 10])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_true_eta_is_the_share_of_the_class_in_the_subset(share, classes):
    labels = np.repeat(np.arange(classes), 1000)
    kept = labels[long_tailed(labels, share, np.random.default_rng(0), classes)]
    eta = etas("true", share, kept, classes)
    for number in range(classes):
        assert eta[kept == number][0] == pytest.approx((kept == number).mean(), rel=1e-5)
    rare = kept >= classes // 2
    assert (etas("low", share, kept, classes) == eta[rare][0]).all()
    assert (etas("high", share, kept, classes) == eta[~rare][0]).all()


def test_a_view_moves_an_image_but_does_not_mirror_it():
    images = torch.zeros(500, 1, 8, 8)
    images[:, 0, 3, 1] = 5.0
    seen = view(images, torch.Generator().manual_seed(0))
    places = seen.flatten(1).argmax(dim=1)
    rows, columns = places // 8, places % 8
    assert set(rows.tolist()) == {2, 3, 4}
    assert set(columns.tolist()) == {0, 1, 2}


def test_digits_are_split_without_overlap():
    train, labels, test, truth = digits()
    assert len(train) + len(test) == 1797
    assert {x.tobytes() for x in train}.isdisjoint({x.tobytes() for x in test})
    assert set(labels) == set(truth) == set(range(10))


def test_a_cell_repeats_and_beats_chance():
    study = LongTail(LongTail.small | {"shares": [0.5], "kinds": ["true"], "steps": 60, "seeds": 1})
    (cell,) = study.cells()
    once, again = study.measure(cell), study.measure(cell)
    assert once == again
    assert once["all at 1"] > 0.5
    assert all(np.isfinite(list(once.values())))
