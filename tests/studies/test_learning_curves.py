"""Learning curves are read from the grids of one name, each length once and in order."""

from __future__ import annotations

import pytest

from medclip_debias.errors import UserError
from studies.learning_curves import SHOWN, Point, curve, plot


def grid(**means):
    """A grid whose arms have one mean for every outcome; a pair has an interval of .1."""
    found = {}
    for method, value in means.items():
        mean, several = value if isinstance(value, tuple) else (value, False)
        own = {"mean": mean, "interval": [mean - 0.1, mean + 0.1] if several else None}
        found[method] = dict.fromkeys(SHOWN, own)
    return {"means": {"all": found}}


GRIDS = {
    "g_1000": grid(a=0.7, b=(0.5, True)),
    "g_300": grid(a=(0.6, True)),
    "g_kinds": grid(a=0.1),
    "other_300": grid(a=0.2),
}


def test_a_curve_has_every_length_of_its_own_grids_in_order():
    assert curve(GRIDS, "g", "a", SHOWN[0]) == [Point(300, 0.6, (0.5, 0.7)), Point(1000, 0.7, None)]
    assert curve(GRIDS, "g", "b", SHOWN[0]) == [Point(1000, 0.5, (0.4, 0.6))]


def test_an_arm_that_no_grid_has_is_a_sentence_and_leaves_nothing(tmp_path):
    with pytest.raises(UserError, match="no grid g_STEPS of this study has an arm 'c'"):
        plot(GRIDS, "g", ["a", "c"], tmp_path / "plot.svg")
    assert not list(tmp_path.iterdir())


def test_equal_curves_are_equal_bytes(tmp_path):
    for name in ("1", "2"):
        (tmp_path / name).mkdir()
        plot(GRIDS, "g", ["a", "b"], tmp_path / name / "plot.svg")
    first, second = ((tmp_path / name / "plot.svg").read_bytes() for name in ("1", "2"))
    assert first == second
