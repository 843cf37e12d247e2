"""The tables of the timing scripts: rounds in turn, ratios, goals."""

from __future__ import annotations

import common
import growth
import pytest
import rivals


def test_all_ways_take_turns_and_the_first_round_does_not_count():
    order = []

    def way(name):
        return lambda: order.append(name) or float(len(order))

    found = common.in_turn({"a": way("a"), "b": way("b")}, rounds=2)
    assert order == ["a", "b", "a", "b", "b", "a"]
    assert found == {"a": [3.0, 6.0], "b": [4.0, 5.0]}
    short = common.in_turn({"a": lambda: 1.0}, rounds=5, budget=-1.0)
    assert short == {"a": [1.0]}, "one round is measured whatever the budget"


def test_a_ratio_is_the_median_of_the_rounds_and_says_whether_the_goal_is_met():
    row = common.ratio("x", [1.0, 2.0, 1.0], [3.0, 2.0, 2.0], 2)
    assert row.met
    assert "2.00 (1.00 to 3.00) times" in row.measured
    assert row.measured.endswith("3 of 5 rounds")
    assert not common.ratio("x", [1.0] * 5, [1.9] * 5, 2).met
    assert not common.within("x", [1.0, 2.0, 3.0, 4.0, 5.0], 3.0).met
    assert "**missed**" in str(common.within("x", [1.0] * 5, 0.5))


def test_a_row_that_cannot_be_measured_says_why_and_the_next_is_begun(capsys, monkeypatch):
    def broken(_):
        """A thing: against another."""
        raise RuntimeError("no\nsuch | thing")
        yield

    def whole(_):
        yield common.within("b", [1.0], 2)

    monkeypatch.setattr(rivals, "ROWS", {"a": broken, "b": whole})
    assert rivals.main(["--only", "a", "b"]) == 1
    rows = capsys.readouterr().out.splitlines()
    assert "\n".join(rows[:2]) == common.HEAD
    assert rows[2:] == [
        "| A thing | - | not measured | - | no such / thing |",
        "| b | < 2 s | 1.00 s (1.00 s to 1.00 s), 1 of 5 rounds | met |  |",
    ]


def test_an_exponent_is_the_slope_of_its_logarithms():
    sizes = [100, 200, 400]
    for power in (0.0, 1.0, 1.5):
        assert growth.exponent(sizes, [3.0 * n**power for n in sizes]) == pytest.approx(power)
    row = growth.row("x", "studies", sizes, [[1.0, 1.1], [2.0, 2.2], [4.0, 4.4]])
    assert row.measured == "1.00 (1.00 to 1.00)"
    assert row.met


def test_rivals_of_this_environment_give_the_same_output_and_a_figure(capsys, monkeypatch):
    """Those that need no environment of their own, at toy size, one round."""
    for side in ("HEIGHT", "WIDTH"):  # the pictures are made small all the same
        monkeypatch.setattr(common, side, getattr(common, side) // 8)
    names = ["loader", "similarity", "worlds", "prepare", "features"]
    assert rivals.main(["--quick", "--rounds", "1", "--threads", "1", "--only", *names]) == 0
    said = capsys.readouterr().out
    assert said.count("times") >= 2 * 5
    assert "not measured" not in said
