"""Tables in Markdown, one way for every page."""

from __future__ import annotations

import re
from collections.abc import Sequence


def markdown_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], words: int | None = None
) -> list[str]:
    """The lines of a table; cells become one line each, and their bars are escaped.

    Args:
        head: titles of the columns.
        rows: cells, each row as long as ``head``.
        words: how many columns, from the left, hold words; the others hold numbers and are
            aligned to the right. All of them by default.

    >>> markdown_table(["run", "AUC"], [["a|b", "0.712"]], words=1)
    ['| run | AUC |', '| --- | ---: |', '| a\\\\|b | 0.712 |']
    """
    count = len(head) if words is None else words
    rule = ["---" if place < count else "---:" for place in range(len(head))]
    bars = [[one_line(cell).replace("|", "\\|") for cell in row] for row in (head, *rows)]
    return ["| " + " | ".join(row) + " |" for row in (bars[0], rule, *bars[1:])]


def one_line(text: str) -> str:
    """Text whose white space is single blanks, and whose control characters are gone."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def plain_words(text: str) -> str:
    """Text that Markdown shows as it is: no emphasis, no link, no HTML.

    >>> plain_words("**best** <script> p < 0.001 zero_shot [x](y)")
    '\\\\*\\\\*best\\\\*\\\\* &lt;script> p < 0.001 zero_shot \\\\[x\\\\](y)'
    """
    marked = re.sub(r"([\\\\`*\[\]]|(?<!\w)_|_(?!\w))", r"\\\1", text)
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", marked)
