"""When a study was made, from the cells of a table."""

from __future__ import annotations

import re
from datetime import date

from medclip_debias.data.sources.ids import is_blank

_DATE = re.compile(r"(\d{4})([-./]?)(\d{2})\2(\d{2})(?:\.0+)?")
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}(?:\.\d+)?))?")
_DIGITS = re.compile(r"(\d{1,6})(\.\d*)?")


def study_moment(day: str, time: str = "") -> tuple[float, ...] | None:
    """Return day and second of the day, the day alone, or ``None`` when the day is not known.

    Args:
        day: ``21800506`` (DICOM, also as ``21800506.0``) or ``2180-05-06``.
        time: ``213014.531`` (DICOM; a table that held it as a number lost leading zeros:
            ``1.984`` is two seconds past midnight), ``21:30`` or ``21:30:14``. What cannot be
            read counts as not known.

    >>> study_moment("21800506", "213014.5")
    (795990.0, 77414.5)
    >>> study_moment("2180-05-06"), study_moment("2180-13-06")
    ((795990.0,), None)
    """
    found = None if is_blank(day) else _DATE.fullmatch(day.strip())
    if found is None:
        return None
    try:
        ordinal = float(date(int(found[1]), int(found[3]), int(found[4])).toordinal())
    except ValueError:
        return None
    second = None if is_blank(time) else _second(time.strip())
    return (ordinal,) if second is None else (ordinal, second)


def _second(time: str) -> float | None:
    """Seconds since midnight."""
    clock = _CLOCK.fullmatch(time)
    if clock is not None:
        hours, minutes, seconds = int(clock[1]), int(clock[2]), float(clock[3] or 0)
    else:
        digits = _DIGITS.fullmatch(time)
        if digits is None:
            return None
        whole, part = digits[1], digits[2]
        # DICOM may leave out seconds and minutes, but not in front of a fraction.
        cut = part is None and len(whole) in (2, 4)
        whole = whole.ljust(6, "0") if cut else whole.rjust(6, "0")
        hours, minutes = int(whole[:2]), int(whole[2:4])
        seconds = int(whole[4:]) + float(f"0{part or '.0'}0")
    if hours > 23 or minutes > 59 or seconds >= 61:
        return None
    return hours * 3600 + minutes * 60 + seconds
