"""What the headings of radiology reports mean: facts, as tables.

Most come from the list that the public MIMIC-CXR section parser counts over all reports
(MIT-LCP/mimic-cxr, ``txt/section_parser.py``), typing errors included. Where this project reads a
heading in another way, it is in `DIFFERENT`, with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Kind = Literal["section", "title", "organ", "other"]
"""A section of its own; a title of the study, below which findings stand; an organ or a device,
whose findings follow; anything else in capitals."""

SPELLINGS: dict[str, tuple[str, ...]] = {
    "findings": (
        *("finding", "pertinent findings", "reference findings", "fidings", "findigns"),
        *("findins", "findindgs", "findgings", "findngs", "findnings", "finidngs", "findnigs"),
    ),
    "impression": (
        *("impressions", "final impression", "conclusion", "conclusions", "opinion", "summary"),
        *("findings and impression", "findings/impression", "findings/ impression"),
        *("findings / impression", "findings & impression", "impression and findings"),
        *("impresson", "imprression", "imoression", "impressoin", "imprssion", "impresion"),
        *("imperssion", "mpression", "impession", "imression", "impresssion"),
    ),
    "indication": (
        *("indications", "clinical indication", "clinical indications", "clinical data"),
        *("reason for exam", "reason for examination", "reason for study", "reason for the exam"),
        *("reason for this examination", "reason for the study"),
        *("ndication", "idication", "inidcation", "indcation"),
    ),
    "history": (
        *("clinical history", "medical history", "patient history", "clinical"),
        *("clinical information", "pfi"),
    ),
    "technique": ("techniques", "procedure", "protocol"),
    "comparison": (
        *("comparisons", "comparison studies", "comparison exam", "comparison film"),
        *("reference exam", "compared to"),
        *("comparision", "comparisions", "comparsion", "comparrison"),
    ),
    "examination": ("exam", "examinations", "study", "type of examination", "type of exam"),
    "recommendation": ("recommendations", "recommendation(s)"),
    "notification": ("notifications",),
    "addendum": ("addenda", "final addendum"),
    "wet read": ("wetread", "preliminary report", "preliminary read", "wet reading"),
    "date": (),
    "comment": (),
}
"""Sections, and the other spellings of their headings."""

NAMES = {written: name for name, others in SPELLINGS.items() for written in (name, *others)}

DIFFERENT = {
    "ndication": "the public list says impression, after the one report that has it",
    "recommendation(s)": "the public list says recommendations; here the name has no s",
    "recommendations": "the public list says recommendations; here the name has no s",
}
"""Headings of the public list that are read in another way here, and why."""

CAPITALS_ONLY = frozenset({"date", "comment", "pfi", "reference exam", "reference findings"})
"""In lower case these start a sentence more often than a section."""

STRUCTURE = frozenset(SPELLINGS) - {
    *("recommendation", "notification", "addendum", "wet read", "date", "comment"),
}
"""Sections that make a text a structured report; a wet read alone may precede a plain note."""

# A heading in capitals that no spelling names is the first of these that it holds.
_PARTS = (
    *(("impression", "impression"), ("finding", "findings"), ("history", "history")),
    *(("comparison", "comparison"), ("addendum", "addendum"), ("wet read", "wet read")),
    *(("indication", "indication"), ("reason", "indication"), ("technique", "technique")),
    *(("recommendation", "recommendation"), ("notification", "notification")),
    *(("prior", "comparison"), ("previous", "comparison")),
)

TITLES = (
    *("chest", "portable", "pa and lateral", "lateral and pa", "ap and lateral"),
    *("lateral and ap", "frontal and", "two views", "frontal view", "pa view", "ap view"),
    *("one view", "lateral view", "bone window", "frontal upright", "frontal semi-upright"),
    *("ribs", "pa and lat"),
)
"""Phrases of the public list: a heading that holds one is the title of the study."""

_OWN_TITLES = (
    *(r"views?\b", r"radiographs?\b", r"radiography\b", r"x-?rays?\b", r"films?\b", r"cxr\b"),
    *(r"decubitus\b", r"upright\b", r"semi-?erect\b"),
)
_TITLE_WORDS = (
    *("a", "ap", "pa", "lateral", "lat", "frontal", "portable", "upright", "supine", "erect"),
    *("semi-upright", "semi-erect", "semiupright", "semierect", "decubitus", "bedside"),
    *("single", "one", "two", "three", "left", "right", "view", "views", "chest"),
    *("radiograph", "radiographs", "radiography", "x-ray", "x-rays", "xray", "film", "films"),
    *("cxr", "image", "images", "projection", "projections", "exam", "examination", "study"),
    *("and", "of", "the", "in", "with", "at", "on", "obtained", "performed", "only"),
    *("dated", "date", "time", "today", "hours", "hour", "hrs", "h", "am", "pm", "a.m", "p.m"),
)
_DEIDENTIFIED = re.compile(r"_+|\bX{3,}\b")

# "LUNGS: Clear." inside findings is a sub-heading, not a section of its own.
_ORGANS = (
    *(r"lungs?", "pleura", "pleural", "heart", "cardiac", "cardiomediastinal"),
    *(r"mediastin(?:um|al)", "hila", "hilar", "hilum", r"bones?", "bony", "osseous", "skeletal"),
    *("soft tissues", r"airways?", "trachea", "diaphragm", "abdomen", r"tubes?", r"lines?"),
    *(r"devices?", r"catheters?", "vessels", "vasculature", "spine", "ribs", "thorax", "aorta"),
    *("pneumothorax", r"effusions?", "pacemaker", r"chest (?:tubes?|wall)", "ett", "ngt", "ogt"),
    *("et tube", "picc", "iabp"),
)


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
        """Return what a heading is, as the function `kind_of` does for English."""
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


def is_title_only(text: str) -> bool:
    """Tell whether an English text only says which views were taken when."""
    return ENGLISH.is_title_only(text)


ENGLISH = Headings(
    names=NAMES,
    capitals_only=CAPITALS_ONLY,
    parts=_PARTS,
    titles=(*map(re.escape, TITLES), *_OWN_TITLES),
    no_titles=(r"chest (?:pain|tubes?|wall)",),
    title_words=frozenset(_TITLE_WORDS),
    organs=_ORGANS,
    bare=("FINDINGS", "IMPRESSION", "FINAL ADDENDUM", "ADDENDUM"),
    preliminary=("WET READ", "PRELIMINARY REPORT"),
)


def kind_of(written: str, capitals: bool) -> tuple[Kind, str] | None:
    """Return what a heading is and the section it starts; ``None`` where it is ordinary text.

    Args:
        written: the heading without its colon, white space joined.
        capitals: it is in capitals; otherwise only known spellings and titles are headings.

    >>> kind_of("FRONTAL AND LATERAL VIEWS OF THE CHEST", True)
    ('title', 'findings')
    """
    return ENGLISH.kind_of(written, capitals)
