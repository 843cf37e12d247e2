"""Cells that hold a list as Python prints it: ``['pleural effusion', ' nodule']``.

Tables of PadChest have their labels so, some of them as NumPy prints them (no commas).
"""

from __future__ import annotations

import ast
import re
import warnings
from typing import TypeAlias, Union

from medclip_debias.data.sources.ids import is_blank
from medclip_debias.errors import UserError

Item: TypeAlias = Union[str, "list[Item]"]

MAX_CHARACTERS = 1 << 16
MAX_DEPTH = 4

_TOKEN = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|\]|\b(?:nan|None)\b", re.DOTALL)
_NO_COMMA = re.compile(r"\s*(?:['\"\[]|nan\b|None\b)")


def read_list(text: str, where: str) -> list[Item]:
    r"""Read a cell; a blank one is an empty list, ``nan`` and ``None`` in it are left out.

    Args:
        text: the cell.
        where: names file, row and column for the message.

    Raises:
        UserError: the cell is no list of strings and lists, or far larger than one of labels is.

    >>> read_list("['nodule', ' nodule ', nan]", "a.csv, row 2")
    ['nodule', ' nodule ']
    >>> read_list("[['kyphosis', 'loc thoracic'], ['C0034069' 'C1']]", "a.csv, row 2")
    [['kyphosis', 'loc thoracic'], ['C0034069', 'C1']]
    """
    if is_blank(text):
        return []
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"{where}: is longer than a list of labels is; correct the cell.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that Python does not know
            value = ast.literal_eval(_TOKEN.sub(_as_literal, text.strip()))
        if not isinstance(value, list):
            raise ValueError
        return _checked(value, 1)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise UserError(
            f"{where}: must be a list as in ['nodule', 'pleural effusion']; correct the cell."
        ) from None


def read_strings(text: str, where: str) -> list[str]:
    """Read a cell as `read_list` does; its items must be strings.

    Raises:
        UserError: the cell is no list of strings.
    """
    items = read_list(text, where)
    if any(isinstance(item, list) for item in items):
        raise UserError(f"{where}: must be a list of strings, without inner lists.")
    return [item for item in items if isinstance(item, str)]


def _as_literal(token: re.Match[str]) -> str:
    """The token with the comma that NumPy leaves out."""
    comma = "," if _NO_COMMA.match(token.string, token.end()) else ""
    return ("None" if token[0] == "nan" else token[0]) + comma


def _checked(items: list[object], depth: int) -> list[Item]:
    if depth > MAX_DEPTH:
        raise ValueError
    checked: list[Item] = []
    for item in items:
        if isinstance(item, list):
            checked.append(_checked(item, depth + 1))
        elif isinstance(item, str):
            checked.append(item)
        elif item is not None:
            raise ValueError
    return checked
