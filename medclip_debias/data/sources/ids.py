"""Ids as tables write them: one reading for all tables, and none that merges two ids.

A table that was once opened as numbers writes ``50414267.0`` for ``50414267`` and ``123`` for
``00123``; MIMIC-CXR's paths write ``s50414267`` for the study ``50414267``. An id is looked up as
it is written, and by its plain form (`plain_id`) only where that leads to a single id.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from medclip_debias.errors import UserError

if TYPE_CHECKING:
    import pandas as pd

PATIENT, STUDY = "p", "s"
"""Letters that MIMIC-CXR's paths put before the numbers of patients and studies."""

LEAST_MATCH = 0.01
"""Share of a table's rows that must name something of the source; below, the ids do not fit."""

_BLANK = frozenset(("", "nan", "none", "null", "nat", "<na>", "n/a", "#n/a", "na"))
_WHOLE = re.compile(r"([+-]?\d+)\.0+")
_FRACTION = re.compile(r"[+-]?\d+\.\d*[1-9]\d*")
_SCIENTIFIC = re.compile(r"(\d)(?:\.(\d+))?[eE]\+(\d+)")  # with its sign: 12e34 may be hexadecimal


def is_blank(text: str) -> bool:
    """Tell whether a cell is empty, or holds a program's word for empty.

    >>> is_blank(" NaN"), is_blank("None"), is_blank("nancy")
    (True, True, False)
    """
    return text.strip().lower() in _BLANK


def plain_id(text: str, letter: str = "") -> str:
    """Return the form in which two spellings of one id are equal.

    Args:
        text: the id as a table writes it.
        letter: `PATIENT` or `STUDY`: may stand before the id's number.

    >>> plain_id(" s50414267.0", "s"), plain_id("00123"), plain_id("1.2.840"), plain_id("p7", "s")
    ('50414267', '123', '1.2.840', 'p7')
    """
    text = _whole(_without_letter(text.strip(), letter))
    return (text.lstrip("0") or "0") if text.isascii() and text.isdigit() else text


def shape(text: str) -> str:
    """Return what an id looks like: digits as 9, letters as a; it gives nobody away.

    >>> shape("s50414267"), shape("CXR1_IM-0001")
    ('a99999999', 'aaa9_aa-9999')
    """
    text = text if len(text) <= 40 else text[:40] + "..."
    return "".join("a" if c.isalpha() else "9" if c.isalnum() else c for c in text)


class Ids:
    """The ids of a source, to be found however a table writes them.

    An id that is written as the source writes it is that id. Another spelling is found where a
    single id of the source has its plain form: ``00123`` and ``123`` stay two.
    """

    def __init__(self, ids: Iterable[str], letter: str = "") -> None:
        self.letter = letter
        self._exact = dict.fromkeys(ids)

    def __len__(self) -> int:
        return len(self._exact)

    def find(self, text: str) -> str:
        """Return the source's id that ``text`` names, ``""`` for none or several."""
        return text if text in self._exact else self._plain.get(plain_id(text, self.letter), "")

    def example(self) -> str:
        return shape(next(iter(self._exact), ""))

    @cached_property
    def _plain(self) -> dict[str, str]:
        """By plain form; made when it is needed, which for tables of one release is never."""
        plain: dict[str, str] = {}
        for name in self._exact:
            key = plain_id(name, self.letter)
            plain[key] = "" if key in plain else name
        return plain


def read_ids(
    path: Path, table: pd.DataFrame, column: str, letter: str = ""
) -> tuple[list[str], list[str]]:
    """Read a column of ids; return them, and sentences on what was read otherwise than written.

    Whole numbers that are written with a point (``9.0``) or a full exponent are read as whole
    numbers, unless another id of the column has a fraction: then the point belongs to the ids. An
    id that is blank, has lost digits, or is written in two ways is refused.
    """
    cells = table[column]
    counts = Counter(cells)
    pointed = any(map(_FRACTION.fullmatch, counts))
    ids: dict[str, str] = {}
    spellings: dict[str, tuple[str, int]] = {}
    changed = rewritten = 0
    distinct = cells.drop_duplicates()
    for row, text in zip(distinct.index.tolist(), distinct, strict=True):
        where = f"{path}, row {row}: "
        problem = _problem(text, counts)
        if problem:
            raise UserError(f"{where}column '{column}' {problem}.")
        number = _without_letter(text, letter)
        ids[text] = number if pointed else _whole(number)
        plain = ids[text] if pointed else plain_id(ids[text])
        spelling, other = spellings.setdefault(plain, (text, row))
        if spelling != text:
            raise UserError(
                f"{where}its {column} is that of row {other} written in another way (with zeros or"
                " a letter before it, or a point behind it); write every id in one way, or make"
                " different ids less alike."
            )
        changed += counts[text] * (ids[text] != number)
        rewritten += counts[text] * (number != text)
    said = [
        f"{path}: {count} ids of column '{column}' {how}."
        for count, how in (
            (
                changed,
                "are written as numbers with a point ('9.0'); they are read as whole numbers ('9')",
            ),
            (rewritten, "have a letter before the number; it is left out"),
        )
        if count
    ]
    return [ids[text] for text in cells], said


def check_match(
    path: Path, column: str, ids: Collection[str], matched: int, source: Ids, what: str
) -> None:
    """Stop when hardly any row of a table names something (``what``) of the source.

    The table may hold far more than the source, or far less; of the smaller of the two, at least
    `LEAST_MATCH` must be in both.
    """
    if not ids or not len(source) or matched >= LEAST_MATCH * min(len(ids), len(source)):
        return
    mine, theirs = shape(next(iter(ids))), source.example()
    looks = (
        f"both look like '{mine}' (9 is any digit, a any letter), so it is perhaps the table of"
        " other data"
        if mine == theirs
        else f"its ids look like '{mine}', those of the {what} like '{theirs}' (9 is any digit,"
        " a any letter)"
    )
    raise UserError(
        f"{path}: {matched} of its {len(ids)} ids in column '{column}' are among the"
        f" {len(source)} {what}; {looks}; give the table that belongs to them, with the ids"
        " written alike."
    )


def _problem(text: str, counts: Counter[str]) -> str:
    """Return what is wrong with an id, ``""`` for nothing."""
    if not text:
        return "is blank; fill it in"
    if is_blank(text):
        count = sum(counts[other] for other in counts if is_blank(other))
        return f"is '{text}', a program's word for blank, as in {count} rows; fill them in"
    number = _SCIENTIFIC.fullmatch(text)
    if number and len(number[2] or "") < int(number[3]):
        return f"is a number like '{shape(text)}', which has lost digits; export the ids as text"
    return ""


def _whole(text: str) -> str:
    """Return the whole number that a spreadsheet or data frame wrote with a point."""
    if number := _WHOLE.fullmatch(text):
        return number[1]
    number = _SCIENTIFIC.fullmatch(text)
    if not number or not int(number[3]) <= len(number[2] or "") <= 40:
        return text
    digits, exponent = number[1] + (number[2] or ""), int(number[3]) + 1
    return text if digits[exponent:].strip("0") else digits[:exponent]


def _without_letter(text: str, letter: str) -> str:
    rest = _whole(text[1:])
    prefixed = letter and text[:1].lower() == letter and rest.isascii() and rest.isdigit()
    return text[1:] if prefixed else text
