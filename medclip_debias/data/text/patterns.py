"""Where headings may stand in a report, as regular expressions of one language's headings."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from medclip_debias.data.text.headings import STRUCTURE, Headings


class Patterns(NamedTuple):
    """Regular expressions of the places where headings may stand.

    Attributes:
        line: a heading with its colon at the start of a line.
        capitals: a heading in capitals, whole.
        inline: a known heading inside a line.
        inline_title: what may be a title of the study, inside a line.
        bare: a heading without a colon, alone on its line.
        bare_title: what may be a title of the study, alone in its paragraph.
        end_of_remark: where what an inline "Comparison:" says is over.
    """

    line: re.Pattern[str]
    capitals: re.Pattern[str]
    inline: re.Pattern[str]
    inline_title: re.Pattern[str]
    bare: re.Pattern[str]
    bare_title: re.Pattern[str]
    end_of_remark: re.Pattern[str]


@lru_cache(maxsize=16)
def patterns(headings: Headings) -> Patterns:
    """Return the patterns of a language's headings."""
    up, letter = headings.upper, headings.upper + headings.lower
    known = [
        re.escape(written)
        for written, name in headings.names.items()
        if name in STRUCTURE and written != "clinical" and written not in headings.capitals_only
    ]
    main = "|".join(sorted(known, key=len, reverse=True))
    loud = "|".join(sorted((word.upper() for word in known), key=len, reverse=True))
    inside = rf"{up}0-9 ()/,.:\-&'#_"
    preliminary = "|".join(headings.preliminary) or "(?!)"
    return Patterns(
        # A colon between digits belongs to a time, not to a heading.
        line=re.compile(
            rf"^[ \t]*([{letter}](?:[^:\n]|(?<=\d):(?=\d)){{0,69}}?)[ \t]*(?:(?<!\d):|:(?!\d))",
            re.MULTILINE,
        ),
        capitals=re.compile(rf"[{up}][{inside}]*[{up})][{inside}]*|[{up}]{{2,}}"),
        # All capitals, or capitalised after the end of a sentence.
        inline=re.compile(
            rf"(?<=[^\S\n])({loud})[ \t]*:"
            rf"|(?<=[.!?;])[ \t]+((?=[{up}])(?i:{main}))[ \t]*:"
        ),
        inline_title=re.compile(
            rf"(?<=[.!?;_])[ \t]+([{up}][{up}0-9 ()/,&\-]{{3,60}})(?<! ):(?=\s)"
        ),
        bare=re.compile(
            rf"^[ \t]*({'|'.join(headings.bare)})[ \t]*$"
            rf"|^[ \t]*({preliminary})\b[^\n:]*(?::(?=\d)[^\n]*)?$",
            re.MULTILINE,
        ),
        bare_title=re.compile(
            rf"^[ \t]*\n[ \t]*([{up}][{up}0-9 ()/,&_\-]{{3,69}})$(?=\n[ \t]*\n)", re.MULTILINE
        ),
        end_of_remark=re.compile(
            rf"(?<!\bDr)(?<!\bNo)(?<!\bvs)(?<!\bSt)[.!?](?=\s+[{up}(])|\n[ \t]*(?=\n)"
        ),
    )
