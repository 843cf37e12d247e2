"""The public losses written out again: where they must agree with ours they do."""

from __future__ import annotations

import official
import pytest


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(official, "VISITS", 3)
    monkeypatch.setattr(official, "COUNTED", 2)


def test_two_views_differ_from_libauc_by_the_pooling_alone_at_gamma_one():
    assert official.two_views(1.0, pooled=True) < 1e-9
    assert 0.05 < official.two_views(1.0, pooled=False) < 0.3
    assert official.two_views(0.5, pooled=True) > 0.1  # there the positive differs too


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_fastclips_similarities_get_the_public_gradient_and_its_scale_does_not(gamma):
    similarity, scale = official.version_3(gamma)
    assert similarity < 1e-6  # averages are stored in float32
    assert scale > 0.1


def test_thresholds_start_as_published_where_no_sample_is_dropped():
    ours_theirs, ours, theirs = official.thresholds(0, 1)
    assert ours_theirs < 1e-6
    assert ours == pytest.approx(theirs, abs=1e-6)
    assert official.thresholds(0, 2)[0] > 0.03
