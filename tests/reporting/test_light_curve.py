"""Curves without matplotlib: points where they belong, round ticks, gaps that stay gaps."""

from __future__ import annotations

import math
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.reporting.light_curve import light_curve, ticks


def drawn(steps, values, **more):
    text = str(light_curve(steps, values, "Loss < 1 & falling", **more))
    tree = ElementTree.fromstring(text)
    assert tree.get("aria-label") == "Loss < 1 & falling"
    lines = [
        [tuple(map(float, point.split(","))) for point in each.get("points").split()]
        for each in tree.iter("polyline")
    ]
    return tree, lines


def test_points_stand_where_the_axes_say():
    tree, (line,) = drawn([0, 50, 100], [1.0, 2.0, 3.0])
    labels = [(float(t.get("x")), float(t.get("y")), t.text) for t in tree.iter("text")]
    steps = {float(text): x for x, y, text in labels if re.fullmatch(r"\d+", text) and y > 220}
    values = {float(text): y - 4 for x, y, text in labels if x < 54}
    assert [x for x, _ in line] == pytest.approx(
        [steps[0], (steps[0] + steps[100]) / 2, steps[100]]
    )
    assert [y for _, y in line] == pytest.approx([values[1], values[2], values[3]], abs=0.11)
    assert values[3] < values[1]  # up is more


def test_a_gap_stays_one_and_a_second_curve_is_dashed():
    tree, lines = drawn([1, 2, 3, 4, 5], [1, 2, None, 4, 5], second=[2] * 5, mark=4)
    assert [len(line) for line in lines] == [2, 2, 5]
    dashes = [each.get("stroke-dasharray") for each in tree.iter("polyline")]
    assert dashes == [None, None, "5 3"]
    (mark,) = (each for each in tree.iter("path") if each.get("class") == "mark")
    assert mark.get("d").startswith(f"M{lines[1][0][0]} ")


@pytest.mark.parametrize("values", [[], [None], [0.5], [0.0], [2.0, 2.0], [-1.0, -1.0]])
def test_what_makes_no_range_is_drawn_all_the_same(values):
    _, lines = drawn(list(range(len(values))), values)
    assert sum(map(len, lines)) == len([value for value in values if value is not None])


@given(
    st.floats(-1e6, 1e6),
    st.floats(1e-6, 1e6),
)
def test_ticks_are_few_round_and_inside(low, span):
    found = ticks(low, low + span)
    if span < 1e-6 * abs(low):  # no digits are left for such a range
        return
    assert 1 <= len(found) <= 7
    slack = 1e-6 * (abs(low) + span)
    assert all(low - slack <= value <= low + span + slack for value in found)
    for a, b in pairwise(found):
        mantissa = (b - a) / 10 ** math.floor(math.log10(b - a) + 1e-9)
        assert min(abs(mantissa - k) for k in (1, 2, 5, 10)) < 1e-3
