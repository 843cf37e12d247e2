"""Plots: lines, bars and marks where they should be."""

from __future__ import annotations

import numpy as np
import pytest

from studies.plots import intervals, means_with_bars, means_with_seeds, panels


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_bars_are_one_standard_deviation_about_the_mean_and_lines_stand_aside(scale):
    _, (axes,) = panels(1)
    axes.set_xscale(scale)
    means_with_bars(axes, [1.0, 100.0], [[1.0, 3.0], [5.0, 5.0]], 0, "one", aside=0.1)
    drawn = axes.lines[0]
    expected = [10.9, 109.9] if scale == "linear" else [100**0.1, 100**1.1]
    np.testing.assert_allclose(drawn.get_xdata(), expected)
    np.testing.assert_allclose(drawn.get_ydata(), [2.0, 5.0])
    (bars,) = axes.collections
    np.testing.assert_allclose(
        [segment[:, 1] for segment in bars.get_segments()],
        [[2 - 2**0.5, 2 + 2**0.5], [5.0, 5.0]],
    )


def test_one_seed_has_no_bars():
    _, (axes,) = panels(1)
    means_with_bars(axes, [0.0, 1.0], [[1.0], [2.0]], 0, "one")
    assert not axes.collections


def test_every_seed_has_a_hollow_mark_beside_the_line_of_the_means():
    _, (axes,) = panels(1)
    means_with_seeds(axes, [0.0, 1.0], [[1.0, 3.0, 5.0], [0.0, 1.0, 2.0]], 1, "one", aside=0.5)
    means, seeds = axes.lines
    np.testing.assert_allclose(means.get_xydata(), [[0.5, 3], [1.5, 1]])
    expected = [[0.5, 1], [0.5, 3], [0.5, 5], [1.5, 0], [1.5, 1], [1.5, 2]]
    np.testing.assert_allclose(seeds.get_xydata(), expected)
    assert seeds.get_markerfacecolor() == "none"
    assert [text.get_text() for text in axes.legend().texts] == ["one"]


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
