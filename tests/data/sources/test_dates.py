"""Dates and times of studies, as tables hold them."""

from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medclip_debias.data.sources.dates import study_moment

TIMES = st.datetimes(datetime(1900, 1, 1), datetime(2220, 1, 1))


@given(TIMES, st.sampled_from(["%Y%m%d", "%Y-%m-%d", "%Y.%m.%d", "%Y%m%d.0"]))
def test_a_moment_is_that_of_the_standard_library(moment, form):
    since = timedelta(hours=moment.hour, minutes=moment.minute, seconds=moment.second)
    seconds = (since + timedelta(microseconds=moment.microsecond)).total_seconds()
    day = float(moment.toordinal())
    written = moment.strftime(form)
    clock = moment.strftime("%H%M%S.%f")
    assert study_moment(written, clock) == pytest.approx((day, seconds), abs=1e-6)
    as_number = clock.lstrip("0")  # a table that held the time as a number lost its zeros
    as_number = "0" + as_number if as_number.startswith(".") else as_number
    assert study_moment(written, as_number) == pytest.approx((day, seconds), abs=1e-6)
    assert study_moment(written) == (day,)


@pytest.mark.parametrize(
    ("time", "seconds"),
    [
        *(("1130", 41400), ("11", 39600), ("1130.0", 690), ("21:30", 77400)),
        *(("21:30:14.5", 77414.5), ("0.0", 0), ("235960", 86400), ("93455", 34495)),
    ],
)
def test_a_time_may_lack_seconds_or_zeros(time, seconds):
    assert study_moment("20200101", time) == (date(2020, 1, 1).toordinal(), seconds)


@pytest.mark.parametrize("day", ["", "nan", "20201301", "2020-02-30", "2020", "1/2/2020", "x" * 99])
def test_a_date_that_is_none_is_not_known(day):
    assert study_moment(day, "120000") is None


@pytest.mark.parametrize("time", ["", "nan", "246060", "25:00", "noon", "1234567", "-1"])
def test_a_time_that_is_none_leaves_the_day(time):
    assert study_moment("20200101", time) == (date(2020, 1, 1).toordinal(),)
