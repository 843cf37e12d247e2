"""Counting what each step drops."""

import pytest

from medclip_debias.data.funnel import Funnel, table
from medclip_debias.errors import UserError


def test_the_table_lines_up_and_holds_every_count():
    funnel = Funnel()
    funnel.step("images listed", "images", 1234567)
    funnel.step("view is frontal", "images", 34567, before=1234567)
    lines = table(funnel.rows).splitlines()
    assert [len(line.rstrip()) for line in lines[1:]] == [len(lines[1])] * 2
    assert lines[2].split() == ["view", "is", "frontal", "34,567", "1,200,000", "images"]


def test_the_worst_step_is_the_one_with_the_largest_share():
    funnel = Funnel()
    funnel.step("listed", "images", 1000)
    funnel.step("many", "images", 400, before=1000)
    funnel.step("most", "images", 4, before=400)
    assert funnel.worst()["step"] == "most"
    funnel.stop_if_empty(4)
    funnel.example = "x"
    with pytest.raises(UserError, match="the step 'most' dropped 396 of 400 images; for example x"):
        funnel.stop_if_empty(0)
