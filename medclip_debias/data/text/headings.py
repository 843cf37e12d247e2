"""What the headings of radiology reports mean; `data/text/languages` has the words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Kind = Literal["section", "title", "organ", "other"]
"""A section of its own; a title of the study, below which findings stand; an organ or a device,
whose findings follow; anything else in capitals."""

STRUCTURE = frozenset(
    ("findings", "impression", "indication", "history", "technique", "comparison", "examination")
)
"""Sections that make a text a structured report; a wet read alone may precede a plain note."""

SECTIONS = STRUCTURE | {
    "recommendation",
    "notification",
    "addendum",
    "wet read",
    "date",
    "comment",
}
"""Sections that have a name of their own."""

_DEIDENTIFIED = re.compile(r"_+|\bX{3,}\b")


@dataclass(frozen=True, eq=False)
class Headings:
    """What the headings of one language mean.

    Attributes:
        names: section by the spelling of its heading, in lower case.
        capitals_only: spellings that are headings in capitals alone.
        parts: section of a heading in capitals that no spelling names, by what it holds; the
            first that fits.
        titles: regular expressions, one of which begins at a word of a title of the study.
        no_titles: regular expressions that no title holds.
        title_words: words of a text that only says which views were taken when.
        organs: regular expressions, one of which is a word of a sub-heading of findings.
        bare: headings that need no colon on a line of their own, in capitals.
        preliminary: those that a time may follow on their line.
        upper: the capitals, as in a character class.
        lower: the small letters.
    """

    names: Mapping[str, str]
    capitals_only: frozenset[str]
    parts: tuple[tuple[str, str], ...]
    titles: tuple[str, ...]
    no_titles: tuple[str, ...]
    title_words: frozenset[str]
    organs: tuple[str, ...]
    bare: tuple[str, ...]
    preliminary: tuple[str, ...] = ()
    upper: str = "A-Z"
    lower: str = "a-z"

    @cached_property
    def _title(self) -> re.Pattern[str]:
        return _any(self.titles, r"\b(?:{})")

    @cached_property
    def _no_title(self) -> re.Pattern[str]:
        return _any(self.no_titles, r"\b(?:{})\b")

    @cached_property
    def _organ(self) -> re.Pattern[str]:
        return _any(self.organs, r"\b(?:{})\b")

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
        for part, name in self.parts:
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
            word in self.title_words or not any(map(str.isalpha, word))
            for word in (word.strip(".-") for word in words)
        )


def _any(patterns: Iterable[str], form: str) -> re.Pattern[str]:
    return re.compile(form.format("|".join(patterns) or "(?!)"))
