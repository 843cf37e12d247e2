"""Plots: lines, bars and marks where they should be."""

from __future__ import annotations

import numpy as np
import pytest

from medclip_debias.experiments.plots import means_with_bars, means_with_seeds, panels


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
