"""What the headings of radiology reports mean, and where they may stand.

The words of a language, and what each list of them is for, are in ``languages/en.yaml``.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Literal

Kind = Literal["section", "title", "organ", "other"]
"""A section of its own; a title of the study, below which findings stand; an organ or a device,
whose findings follow; anything else in capitals."""

STRUCTURE = frozenset(
    ("findings", "impression", "indication", "history", "technique", "comparison", "examination")
)
"""Sections that make a text a structured report; a wet read alone may precede a plain note."""

SECTIONS = STRUCTURE | {
    *("recommendation", "notification", "addendum", "wet read", "date", "comment"),
}
"""Sections that have a name of their own."""

_DEIDENTIFIED = re.compile(r"_+|\bX{3,}\b")


class Headings:
    """The headings of one language.

    Attributes:
        names: section by the spelling of its heading, in lower case.
        capitals_only: spellings that are headings in capitals alone.
        line: a heading with its colon at the start of a line.
        capitals: a heading in capitals, whole.
        inline: a known heading inside a line.
        inline_title: what may be a title of the study, inside a line.
        bare: a heading without a colon, alone on its line.
        bare_title: what may be a title of the study, alone in its paragraph.
        end_of_remark: where what an inline "Comparison:" says is over.
    """

    def __init__(self, words: Mapping[str, Any]) -> None:
        self.names: dict[str, str] = {
            spelling: section
            for section, written in words["sections"].items()
            for heading in written
            for spelling in spellings(heading)
        }
        self.capitals_only = frozenset(s for w in words["capitals_only"] for s in spellings(w))
        self._parts: dict[str, str] = words["parts"]
        self._title_words = frozenset(words["title_words"])
        self._title = re.compile(rf"\b(?:{'|'.join(words['titles'])})")
        self._no_title, self._organ = (
            re.compile(rf"\b(?:{'|'.join(words[name])})\b") for name in ("no_titles", "organs")
        )
        up, letter = words["upper"], words["upper"] + words["lower"]
        known = [
            re.escape(written)
            for written, name in self.names.items()
            if name in STRUCTURE and written != "clinical" and written not in self.capitals_only
        ]
        main = "|".join(sorted(known, key=len, reverse=True))
        loud = "|".join(sorted((word.upper() for word in known), key=len, reverse=True))
        bare, preliminary = (_loud(words.get(name, ())) for name in ("bare", "preliminary"))
        inside = rf"{up}0-9 ()/,.:\-&'#_"
        # A colon between digits belongs to a time, not to a heading.
        self.line = re.compile(
            rf"^[ \t]*([{letter}](?:[^:\n]|(?<=\d):(?=\d)){{0,69}}?)[ \t]*(?:(?<!\d):|:(?!\d))",
            re.MULTILINE,
        )
        self.capitals = re.compile(rf"[{up}][{inside}]*[{up})][{inside}]*|[{up}]{{2,}}")
        # All capitals, or capitalised after the end of a sentence.
        self.inline = re.compile(
            rf"(?<=[^\S\n])({loud})[ \t]*:"
            rf"|(?<=[.!?;])[ \t]+((?=[{up}])(?i:{main}))[ \t]*:"
        )
        self.inline_title = re.compile(
            rf"(?<=[.!?;_])[ \t]+([{up}][{up}0-9 ()/,&\-]{{3,60}})(?<! ):(?=\s)"
        )
        self.bare = re.compile(
            rf"^[ \t]*({bare})[ \t]*$"
            rf"|^[ \t]*({preliminary})\b[^\n:]*(?::(?=\d)[^\n]*)?$",
            re.MULTILINE,
        )
        self.bare_title = re.compile(
            rf"^[ \t]*\n[ \t]*([{up}][{up}0-9 ()/,&_\-]{{3,69}})$(?=\n[ \t]*\n)", re.MULTILINE
        )
        self.end_of_remark = re.compile(
            rf"(?<!\bDr)(?<!\bNo)(?<!\bvs)(?<!\bSt)[.!?](?=\s+[{up}(])|\n[ \t]*(?=\n)"
        )

    def kind_of(self, written: str, capitals: bool) -> tuple[Kind, str] | None:
        """Return what a heading is and the section it starts; ``None`` where it is ordinary text.

        Args:
            written: the heading without its colon, white space joined.
            capitals: it is in capitals; otherwise only known spellings and titles are headings.
        """
        lower = written.lower()
        name = self.names.get(lower)
        if name is not None and (capitals or lower not in self.capitals_only):
            return "section", name
        titled = bool(self._title.search(lower))
        if not capitals:
            full = len(lower.split()) > 1 and self.is_title_only(written) and titled
            return ("title", "findings") if full else None
        for part, name in self._parts.items():
            if part in lower:
                return "section", name
        if titled and not self._no_title.search(lower):
            return "title", "findings"
        if self._organ.search(lower):
            return "organ", "findings"
        return ("section", "examination") if "exam" in lower else ("other", lower)

    def is_title_only(self, text: str) -> bool:
        """Tell whether a text only says which views were taken when, as in ``PA VIEW ON ___``."""
        words = re.split(r"[\s,()/&:;]+", _DEIDENTIFIED.sub(" ", text.lower()))
        return all(
            word in self._title_words or not any(map(str.isalpha, word))
            for word in (word.strip(".-") for word in words)
        )


def spellings(heading: str) -> list[str]:
    """Return a heading as it is written, and without its accents.

    >>> spellings("conclusión")
    ['conclusión', 'conclusion']
    """
    parted = unicodedata.normalize("NFD", heading)
    bare = "".join(c for c in parted if not unicodedata.combining(c))
    return list(dict.fromkeys((heading, bare)))


def _loud(written: Iterable[str]) -> str:
    """Headings in capitals, longest first."""
    headings = {s.upper() for heading in written for s in spellings(heading.lower())}
    loud = sorted(map(re.escape, headings), key=lambda heading: (-len(heading), heading))
    return "|".join(loud) or "(?!)"
