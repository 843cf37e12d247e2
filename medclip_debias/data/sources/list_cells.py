"""Cells that hold a list as Python prints it: ``['pleural effusion', ' nodule']``.

Tables of PadChest have their labels so, some of them as NumPy prints them (no commas). Nothing is
evaluated: a cell is a bracket, quoted strings, words for "nothing" and inner lists of the same,
and anything else is refused.
"""

from __future__ import annotations

import re
from typing import TypeAlias, Union

from medclip_debias.data.sources.ids import is_blank
from medclip_debias.errors import UserError

Item: TypeAlias = Union[str, "list[Item]"]

MAX_CHARACTERS = 1 << 16
MAX_DEPTH = 4

_TOKEN = re.compile(
    r"\s*(?:(?P<open>\[)|(?P<close>\])|(?P<comma>,)|(?P<nothing>nan|None)"
    r"|'(?P<single>(?:[^'\\]|\\.)*)'|\"(?P<double>(?:[^\"\\]|\\.)*)\")",
    re.DOTALL,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U(00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4})|(.))",
    re.DOTALL,
)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}


def read_list(text: str, where: str) -> list[Item]:
    r"""Read a cell; a blank one is an empty list.

    Args:
        text: the cell.
        where: names file, row and column for the message.

    Raises:
        UserError: the cell is no list, or far larger than a list of labels is.

    >>> read_list("['nodule', ' nodule ', nan]", "a.csv, row 2")
    ['nodule', ' nodule ']
    >>> read_list("[['kyphosis', 'loc thoracic'], ['C0034069' 'C1']]", "a.csv, row 2")
    [['kyphosis', 'loc thoracic'], ['C0034069', 'C1']]
    """
    if is_blank(text):
        return []
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"{where}: is longer than a list of labels is; correct the cell.")
    whole: list[Item] = []
    inside: list[list[Item]] = []
    place, text = 0, text.strip()
    after_comma = False
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None or (place and not inside):
            raise _refused(where)
        place = token.end()
        kind = str(token.lastgroup)
        if kind == "comma":
            if after_comma or not inside:
                raise _refused(where)
            after_comma = True
            continue
        after_comma = kind == "open"
        if kind == "open":
            if len(inside) == MAX_DEPTH:
                raise _refused(where)
            inner: list[Item] = []
            (inside[-1].append(inner) if inside else None)
            whole = whole if inside else inner
            inside.append(inner)
        elif not inside:
            raise _refused(where)
        elif kind == "close":
            inside.pop()
        elif kind != "nothing":
            inside[-1].append(_unescaped(token[kind]))
    if inside:
        raise _refused(where)
    return whole


def read_strings(text: str, where: str) -> list[str]:
    """Read a cell as `read_list` does; its items must be strings.

    Raises:
        UserError: the cell is no list of strings.
    """
    items = read_list(text, where)
    if any(isinstance(item, list) for item in items):
        raise UserError(f"{where}: must be a list of strings, without inner lists.")
    return [item for item in items if isinstance(item, str)]


def _refused(where: str) -> UserError:
    return UserError(
        f"{where}: must be a list as in ['nodule', 'pleural effusion']; correct the cell."
    )


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(_escaped, text)


def _escaped(found: re.Match[str]) -> str:
    number = found[1] or found[2] or found[3]
    return chr(int(number, 16)) if number else _ESCAPED.get(found[4], found[4])
