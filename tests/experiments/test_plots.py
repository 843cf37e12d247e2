"""Plots of differences: every name has its place."""

from __future__ import annotations

import pytest

from medclip_debias.experiments.plots import intervals, panels


def test_a_name_has_one_height_in_panels_side_by_side():
    """A published figure's right panel was a line off: it lacked one that the left one named."""
    _, (left, right) = panels(2)
    rows = ["a", "b", "c"]
    found = {name: (0.1 * n, (0.1 * n - 0.01, 0.1 * n + 0.01), 0.5) for n, name in enumerate(rows)}
    intervals(left, found, rows, names=True)
    intervals(right, {"c": found["c"], "a": found["a"]}, rows, names=False)
    assert [text.get_text() for text in left.get_yticklabels()] == ["c", "b", "a"]
    for axes, shown in ((left, {0: 0.2, 1: 0.1, 2: 0.0}), (right, {0: 0.2, 2: 0.0})):
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        drawn = {line.get_ydata()[0]: line.get_xdata()[0] for line in dots}
        assert drawn == pytest.approx(shown)
    assert not left.texts
    (said,) = right.texts
    assert (said.get_text(), said.xy) == ("not measured", (0, 1))


def test_a_difference_without_a_place_is_refused():
    _, (axes,) = panels(1)
    with pytest.raises(ValueError, match="no place for b"):
        intervals(axes, {"b": (0.0, (0.0, 0.0), 1.0)}, ["a"], names=True)
