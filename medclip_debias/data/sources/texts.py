"""Cells as programs write them.

Reports with words for blank, Python's bytes, escaped breaks, HTML; lists as Python prints them
(``['pleural effusion', ' nodule']``), as PadChest's labels are, some as NumPy does (no commas).
"""

from __future__ import annotations

import ast
import html
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from medclip_debias.data.records import Step
from medclip_debias.data.sources.ids import is_blank

_BYTES = re.compile(r"b'.*'|b\".*\"", re.DOTALL)
_QUOTED = re.compile(r'"[^"]*"|\u201c[^\u201c\u201d]*\u201d')
_BREAK = re.compile(r"\\r\\n|\\n")

_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|nbsp|#\d{1,5}|#x[0-9a-f]{1,4});", re.IGNORECASE)
_TAG = re.compile(
    r"<(?:br|/?(?:p|div|li|ul|ol|tr|td|table|b|i|u|em|strong|span|font))(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)

BLANK, BYTES, BREAKS, BOTH, MARKUP = "blank", "bytes", "breaks", "both", "markup"
QUOTED = "quoted"
WITHOUT_MARKUP = "report with HTML is read without its tags"
_SAID = {
    BLANK: "are a program's word for blank ('nan', 'None') and count as empty",
    BYTES: "are written as Python's bytes (b'...'); they are read as the text in them",
    BREAKS: r"have the two characters '\n' where lines break; they are read as line breaks",
    BOTH: r"have '\n' as two characters beside line breaks; they are read as they are",
    QUOTED: "are in quotation marks; they are read without",
    MARKUP: "have HTML in them (<br>, &gt;); tags are read as line breaks, entities as characters",
}
_STEPS = {
    BYTES: "report written as bytes (b'...') is read as text",
    BREAKS: r"report with '\n' as two characters is read with line breaks",
    BOTH: r"report with '\n' as two characters beside line breaks is kept as it is",
    QUOTED: "report in quotation marks is read without them",
    MARKUP: WITHOUT_MARKUP,
}


def read_report(text: str) -> tuple[str, list[str]]:
    r"""Return the text that a cell stands for, and what had to be mended.

    >>> read_report("b'Clear.\\nHeart normal.'")
    ('Clear.\nHeart normal.', ['bytes'])
    >>> read_report("NaN")
    ('', ['blank'])
    """
    mended = []
    if text and is_blank(text):
        return "", [BLANK]
    if _BYTES.fullmatch(text):
        found = _from_bytes(text)
        if found is not None:
            text = found
            mended.append(BYTES)
    if _QUOTED.fullmatch(text):  # where nothing would be cut into sentences
        text = text[1:-1].strip()
        mended.append(QUOTED)
    if _BREAK.search(text):
        if "\n" in text:
            mended.append(BOTH)
        else:
            text = _BREAK.sub("\n", text)
            mended.append(BREAKS)
    plain = without_markup(text)
    if plain != text:
        mended.append(MARKUP)
    return plain, mended


def without_markup(text: str) -> str:
    """Return text with HTML's entities as characters and its tags as line breaks.

    >>> without_markup("nodules concerning for<BR>metastasis &gt; 5 mm, AP < PA")
    'nodules concerning for\\nmetastasis > 5 mm, AP < PA'
    """
    text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    return _TAG.sub("\n", text)


def spaced(text: str) -> str:
    """Return a text with one blank for all that is blank between its words."""
    return " ".join(text.split())


def mended_said(path: Path, counts: Counter[str]) -> list[str]:
    """Return sentences on the reports of a table that were mended, as `read_report` names it."""
    kinds = (kind for kind in _SAID if counts[kind])
    return [f"{path}: {counts[kind]} reports {_SAID[kind]}." for kind in kinds]


def mended_steps(counts: Counter[str], total: int) -> list[Step]:
    """Return the same for the funnel, of so many reports in all."""
    blank = "report is not a word for blank ('nan', 'None')"
    steps: list[Step] = [(blank, "reports", total - counts[BLANK], total)] if counts[BLANK] else []
    return steps + [(_STEPS[k], "reports", counts[k], None) for k in _STEPS if counts[k]]


def _from_bytes(text: str) -> str | None:
    try:
        value = ast.literal_eval(text)
        return value.decode("utf-8") if isinstance(value, bytes) else None
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None  # UnicodeDecodeError is a ValueError


# -------------------------------------------------------------------------------------- lists

MAX_CHARACTERS = 1 << 16
MAX_DEPTH = 4

_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\]|\b(?:nan|None)\b", re.DOTALL)
_NO_COMMA = re.compile(r"\s*(?:['\"\[]|nan\b|None\b)")


def read_list(text: str, *, depth: int = MAX_DEPTH) -> list[Any] | None:
    r"""Read a cell; ``None`` where it is no list of strings and lists, or far too long.

    A blank cell is an empty list; ``nan`` and ``None`` in a list are left out.

    >>> read_list("['nodule', ' nodule ', nan]")
    ['nodule', ' nodule ']
    >>> read_list("[['kyphosis', 'loc thoracic'], ['C0034069' 'C1']]")
    [['kyphosis', 'loc thoracic'], ['C0034069', 'C1']]
    """
    if is_blank(text):
        return []
    if len(text) > MAX_CHARACTERS:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that Python does not know
            value = ast.literal_eval(_TOKEN.sub(_as_literal, text.strip()))
        return _strings(value, depth)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None


def _as_literal(token: re.Match[str]) -> str:
    """The token with the comma that NumPy leaves out."""
    comma = "," if _NO_COMMA.match(token.string, token.end()) else ""
    return ("None" if token[0] == "nan" else token[0]) + comma


def _strings(items: object, depth: int) -> list[Any]:
    if not isinstance(items, list) or not depth:
        raise ValueError("is not a list, or is nested too deeply")
    present = [item for item in items if item is not None]
    return [item if isinstance(item, str) else _strings(item, depth - 1) for item in present]
