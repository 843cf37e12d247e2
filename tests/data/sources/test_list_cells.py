"""Cells that hold Python lists: read as Python would, and nothing but lists."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.sources.list_cells import MAX_CHARACTERS, read_list, read_strings
from medclip_debias.errors import UserError

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=12)
LISTS = st.recursive(TEXT, lambda inner: st.lists(inner, max_size=4), max_leaves=8)


@given(st.lists(LISTS, max_size=5))
def test_what_python_prints_is_what_is_read(items):
    def deep(item):
        return 1 + max(map(deep, item), default=0) if isinstance(item, list) else 0

    printed = repr(items)
    if deep(items) <= 4:
        assert read_list(printed, "a.csv, row 2") == ast.literal_eval(printed) == items


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
    assert read_list(text, "x") == expected


@pytest.mark.parametrize(
    "text",
    [
        *("[", "['a'", "'a'", "a", "[a]", "['a']]", "['a'],", "[,]", "['a',,'b']", "['a'] x"),
        *("[[[[['a']]]]]", "__import__('os')", "[1]", "['a' + 'b']", "{'a': 1}", "['a"),
        "[" + "'a'," * MAX_CHARACTERS + "]",
    ],
)
def test_anything_else_is_refused_with_its_place_and_without_its_content(text):
    with pytest.raises(UserError, match=r"^a\.csv, row 2: ") as refused:
        read_list(text, "a.csv, row 2")
    assert "__import__" not in str(refused.value)


def test_a_list_of_strings_has_no_inner_list():
    assert read_strings("['a', 'b ']", "x") == ["a", "b "]
    with pytest.raises(UserError, match="without inner lists"):
        read_strings("['a', ['b']]", "x")
