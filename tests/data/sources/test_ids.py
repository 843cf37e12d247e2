"""Ids of all tables: one reading, and never two ids made one."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.sources.ids import STUDY, Ids, check_match, plain_id, read_ids, shape
from medclip_debias.errors import UserError

WORDS = st.text("ab0123456789.-_ sp", max_size=12)


@given(st.integers(1, 10**15), st.integers(0, 4))
def test_every_spelling_of_a_number_is_one_id(number, zeros):
    digits = str(number)
    spellings = {digits, f"{digits}.0", f"s{digits}", "0" * zeros + digits, f" {digits} "}
    spellings |= {str(float(number)), f"S{digits}.00", str(np.float64(number))}
    assert {plain_id(text, STUDY) for text in spellings} == {digits}
    source = Ids(["elsewhere", digits], STUDY)
    assert {source.find(text) for text in spellings} == {digits}


@given(st.lists(WORDS, unique=True, max_size=8), WORDS)
def test_an_id_that_is_there_is_itself_and_another_spelling_is_found_where_one_has_it(ids, text):
    same = [name for name in ids if plain_id(name, STUDY) == plain_id(text, STUDY)]
    expected = text if text in ids else same[0] if len(same) == 1 else ""
    source = Ids(ids, STUDY)
    assert source.find(text) == expected
    assert [source.find(name) for name in ids] == ids


def test_ids_that_differ_in_zeros_alone_stay_two():
    source = Ids(["00123", "123"])
    assert (source.find("00123"), source.find("123"), source.find("0123")) == ("00123", "123", "")


@pytest.mark.parametrize("text", ["1.2.840.0", "12e34", "a1.0", "1.5", "p7", "s-1", "s"])
def test_what_is_no_number_stays_as_it_is(text):
    assert plain_id(text, STUDY) == text


def read(cells, **keywords):
    return read_ids("a.csv", pd.DataFrame({"id": cells}, index=range(2, 2 + len(cells))), "id")


def test_numbers_with_a_point_are_whole_and_are_counted():
    ids, (said,) = read(["50414267.0", "7", "5.0414268e+07"])
    assert ids == ["50414267", "7", "50414268"]
    assert said.startswith("a.csv: 2 ids of column 'id'")
    assert "5041" not in said


def test_a_point_belongs_to_the_ids_where_one_of_them_needs_it():
    assert read(["12.0", "12.1", "12"])[0] == ["12.0", "12.1", "12"]


@pytest.mark.parametrize(
    ("cells", "sentence"),
    [
        (["1", "nan"], "row 3: column 'id' is 'nan', a program's word for blank, as in 1 rows"),
        (["None", "1", "NaN"], "row 2: column 'id' is 'None', .* as in 2 rows"),
        (["5.04E+07"], "row 2: column 'id' is a number like '9.99a[+]99', which has lost digits"),
        (["00123", "7", "123"], "row 4: its id is that of row 2 written in another way"),
        (["7", "7.0"], "row 3: its id is that of row 2 written in another way"),
    ],
)
def test_an_id_that_names_nobody_or_two_is_refused(cells, sentence):
    with pytest.raises(UserError, match=sentence):
        read(cells)


@pytest.mark.parametrize(
    ("matched", "rows", "studies", "stops"),
    [
        (0, 24, 24, True),
        (3, 227_827, 3, False),  # a corner of the release, with the tables of all of it
        (1, 200, 300, True),
        (2, 200, 300, False),
        (0, 0, 5, False),
        (0, 5, 0, False),
    ],
)
def test_a_table_fits_when_a_hundredth_of_the_smaller_side_does(matched, rows, studies, stops):
    ids = [str(n) for n in range(10_000_000, 10_000_000 + rows)]
    source = Ids(f"CXR{n}" for n in range(studies))
    if not stops:
        check_match("a.csv", "study_id", ids, matched, source, "studies")
        return
    with pytest.raises(UserError, match=r"look like '99999999', those .* 'aaa9'") as caught:
        check_match("a.csv", "study_id", ids, matched, source, "studies")
    assert ids[0] not in str(caught.value)


@given(st.text())
def test_a_shape_shows_no_digit_and_no_letter(text):
    assert not set(filter(str.isalnum, shape(text))) - {"9", "a"}
