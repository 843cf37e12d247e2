"""Cells that hold Python lists: read as Python would, and nothing but lists."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.sources.texts import MAX_CHARACTERS, read_list

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=12)
LISTS = st.recursive(TEXT, lambda inner: st.lists(inner, max_size=4), max_leaves=8)


@given(st.lists(LISTS, max_size=5))
def test_what_python_prints_is_what_is_read(items):
    def deep(item):
        return 1 + max(map(deep, item), default=0) if isinstance(item, list) else 0

    printed = repr(items)
    if deep(items) <= 4:
        assert read_list(printed) == ast.literal_eval(printed) == items


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("nan", []),
        ("[]", []),
        ("['C1' 'C2'\n 'C3']", ["C1", "C2", "C3"]),  # as NumPy prints them
        ("['a', nan, None]", ["a"]),
        (r"['d\'or', 'a\\b']", ["d'or", "a\\b"]),
        ("['a',]", ["a"]),
    ],
)
def test_odd_spellings_of_lists(text, expected):
    assert read_list(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("['a'", "'a'", "[a]", "['a']]", "[,]", "['a',,'b']", "['a'] x"),
        *("[[[[['a']]]]]", "__import__('os')", "[1]", "['a"),
        "[" + "'a'," * MAX_CHARACTERS + "]",
    ],
)
def test_anything_else_is_no_list(text):
    assert read_list(text) is None


def test_a_list_of_strings_has_no_inner_list():
    assert read_list("['a', 'b ']", depth=1) == ["a", "b "]
    assert read_list("['a', ['b']]", depth=1) is None
