"""Cells that hold a list as Python prints it: ``['pleural effusion', ' nodule']``.

Tables of PadChest have their labels so, some of them as NumPy prints them (no commas).
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import Any

from medclip_debias.data.sources.ids import is_blank

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
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
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
        raise ValueError("is no list, or one too deep")
    present = [item for item in items if item is not None]
    return [item if isinstance(item, str) else _strings(item, depth - 1) for item in present]
