"""Rules of a label map against an enumeration of every state that unknown columns may be in."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.label_maps.rules import read_rule

VALUES = (1.0, 0.0, -1.0, None)


def number(value):
    return np.nan if value is None else value


def made_of(rule, values):
    """The value of one image whose columns hold ``values``."""
    found, both = read_rule(rule).values(lambda name: np.array([number(values[name])]))
    return (None if np.isnan(found[0]) else found[0]), bool(both[0])


def truth(rule, world):
    """Whether a rule holds where every column is known."""
    if isinstance(rule, str):
        return world[rule]
    if isinstance(rule, list):
        return any(truth(part, world) for part in rule)
    how, parts = next(iter(rule.items()))
    held = [truth(part, world) for part in (parts if isinstance(parts, list) else [parts])]
    return {"any": any(held), "all": all(held), "not": not any(held)}[how]


@st.composite
def rules_and_values(draw):
    """A rule in which each column stands once, and a value of each column."""
    names = iter("abcdefgh")

    def rule(depth):
        kind = draw(st.sampled_from(["column", "any", "all", "not"] if depth else ["column"]))
        if kind == "column":
            return next(names)
        return {kind: [rule(depth - 1) for _ in range(draw(st.integers(1, 2)))]}

    made = rule(3)
    return made, {name: draw(st.sampled_from(VALUES)) for name in "abcdefgh"}


@given(rules_and_values())
def test_a_rule_is_known_exactly_where_no_unknown_column_could_change_it(case):
    rule, values = case
    used = read_rule(rule).columns()
    unknown = [name for name in used if values[name] not in (0.0, 1.0)]
    worlds = [
        {name: values[name] == 1 for name in used} | dict(zip(unknown, guess, strict=True))
        for guess in product([True, False], repeat=len(unknown))
    ]
    answers = {truth(rule, world) for world in worlds}
    found, both = made_of(rule, values)
    assert not both
    if len(answers) == 1:
        assert found == float(answers.pop())
    else:
        assert found in (-1.0, None)
        kinds = {values[name] for name in unknown}
        if len(kinds) == 1:
            assert found == kinds.pop()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 0, 0, 0), (1, False)),
        ((1, 1, 1, 0), (1, False)),  # present counts before uncertain and blank
        ((0, 1, 1, 0), (-1, False)),
        ((0, 0, 1, 1), (None, False)),  # blank counts before absent
        ((0, 0, 0, 0), (None, False)),  # neither is said
        ((1, 0, 0, 1), (None, True)),
        ((None, 0, 0, None), (None, False)),
        ((-1, 0, 0, 0), (-1, False)),
    ],
)
def test_sides_of_a_rule_count_in_their_order(values, expected):
    rule = {"present": "P", "uncertain": "U", "blank": "B", "absent": "A", "why": "so"}
    assert made_of(rule, dict(zip("PUBA", values, strict=True))) == expected


def test_without_absent_a_class_is_absent_where_it_is_not_present():
    rule = {"present": ["P", "Q"], "blank": "B"}
    assert made_of(rule, {"P": 0, "Q": 0, "B": 0}) == (0, False)
    assert made_of(rule, {"P": 0, "Q": 0, "B": 1}) == (None, False)
    assert made_of(rule, {"P": 0, "Q": 1, "B": 1}) == (1, False)
    assert str(read_rule(rule)) == "any of P, Q; blank: B"
    assert read_rule(rule).columns() == ["P", "Q", "B"]


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        (5, "must name label columns as texts"),
        (["A", True], "needs quotes"),
        ({"any": []}, "must name label columns"),
        ({"some": ["A"]}, "'some' is not one of any, all, not"),
        ({"any": ["A"], "not": ["B"]}, "one of any, all and not, and only one"),
        ({"absent": "A"}, "there must be 'present'"),
        ({"present": "A", "any": ["B"]}, "belong below them"),
        ({"present": "A", "why": 3}, "'why' must be a text"),
    ],
)
def test_what_is_no_rule_is_said(rule, sentence):
    with pytest.raises(ValueError, match=sentence):
        read_rule(rule)
