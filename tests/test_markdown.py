"""Tables in Markdown stay tables, whatever is in their cells."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.markdown import markdown_table


def test_numbers_stand_to_the_right_and_words_to_the_left():
    head, rule, row = markdown_table(["run", "AUC"], [["a|b\nc", "0.712"]], words=1)
    assert (head, rule) == ("| run | AUC |", "| --- | ---: |")
    assert row == "| a\\|b c | 0.712 |"
    assert markdown_table(["a", "b"], [])[1] == "| --- | --- |"


@given(st.lists(st.tuples(st.text(), st.text()), max_size=3))
def test_every_row_is_one_line_of_as_many_cells(rows):
    lines = markdown_table(["a", "b"], rows)
    assert len(lines) == 2 + len(rows)
    for line in lines:
        assert len(line.splitlines()) == 1
        assert line.count("|") - line.count("\\|") == 3
