"""From the text of a report to its sentences.

`sections` cuts a report at its headers. It agrees with the public MIMIC-CXR section parser on
well-formed reports (names normalised; the last section of a name wins; without findings and
impression, what follows the last section's first paragraph is ``last_paragraph``). It also reads
mixed case, digits, ``FINDINGS:Lungs``, headers on the first line or inside one, and keeps wet
reads and addenda apart. `report_sentences` cuts the sections that `ReportSettings` names into
sentences (`medclip_debias.data.sentences`).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from medclip_debias.config import Settings
from medclip_debias.data.sentences import split_sentences_counted

NOTE = "note"
"""Name of the one section of a text without known headers."""

FALLBACK = ("last_paragraph", NOTE, "comparison")
"""Where sentences come from, first match, when there is neither findings nor impression."""

_ALIASES: dict[str, tuple[str, ...]] = {
    "findings": ("finding", "pertinent findings", "findins", "finidngs", "findnigs", "fidings"),
    "impression": (
        *("impressions", "final impression", "conclusion", "conclusions", "opinion", "summary"),
        *("impresson", "imprssion", "impresion", "imression", "impressoin"),
    ),
    "indication": (
        *("indications", "clinical indication", "clinical information", "clinical data"),
        *("reason for exam", "reason for examination", "reason for study", "reason for the exam"),
        *("reason for this examination", "reason for the study", "inidcation", "indcation"),
    ),
    "history": ("clinical history", "medical history", "patient history", "clinical"),
    "technique": ("techniques", "procedure", "protocol"),
    "comparison": ("comparisons", "comparison studies", "comparision", "comparsion", "compared to"),
    "examination": ("exam", "examinations", "study", "type of examination", "type of exam"),
    "recommendation": ("recommendations",),
    "notification": ("notifications",),
    "addendum": ("addenda", "final addendum"),
    "wet read": ("preliminary report", "preliminary read", "wet reading"),
}
_NAMES = {alias: name for name, others in _ALIASES.items() for alias in (name, *others)}

# Names that make a text a structured report; a wet read alone may precede a plain note.
_STRUCTURE = frozenset(_ALIASES) - {"recommendation", "notification", "addendum", "wet read"}

# Capital headers that no alias names are normalised by the first of these words they hold.
_SUBSTRINGS = (
    *("impression", "finding", "comparison", "addendum", "wet read", "indication", "reason"),
    *("history", "technique", "recommendation", "notification", "exam", "chest", "radiograph"),
)
_BY_SUBSTRING = {
    "finding": "findings",
    "reason": "indication",
    "exam": "examination",
    "chest": "examination",
    "radiograph": "examination",
}

# "LUNGS: Clear." inside findings is a sub-heading, not a section of its own.
_ANATOMY = re.compile(
    r"\b(?:lungs?|pleura|pleural|heart|cardiac|cardiomediastinal|mediastin(?:um|al)|hila|hilar"
    r"|hilum|bones?|bony|osseous|skeletal|soft tissues|airways?|trachea|diaphragm|abdomen|tubes"
    r"|lines|devices|catheters|vessels|vasculature|spine|ribs|thorax|other)\b"
)

_LINE_HEADER = re.compile(r"^[ \t]*([A-Za-z][^:\n]{0,69}?)[ \t]*:", re.MULTILINE)
_CAPITALS = re.compile(r"[A-Z][A-Z0-9 ()/,.\-&'#_]*[A-Z)][A-Z0-9 ()/,.\-&'#_]*|[A-Z]{2,}")
_MAIN = "|".join(
    sorted(
        (alias for alias, name in _NAMES.items() if name in _STRUCTURE and alias != "clinical"),
        key=len,
        reverse=True,
    )
)
# A header inside a line: all capitals, or capitalised after the end of a sentence.
_INLINE_HEADER = re.compile(
    rf"(?<=[^\S\n])({_MAIN.upper()})[ \t]*:"
    rf"|(?<=[.!?;])[ \t]+((?=[A-Z])(?i:{_MAIN}))[ \t]*:"
)
_BARE_HEADER = re.compile(
    rf"^[ \t]*({'|'.join(('FINDINGS', 'IMPRESSION', 'FINAL ADDENDUM', 'ADDENDUM'))})[ \t]*$"
    r"|^[ \t]*(WET READ|PRELIMINARY REPORT)\b[^\n:]*(?::(?=\d)[^\n]*)?$",
    re.MULTILINE,
)
# Ends a section without naming the next one. A full-width line of underscores, not "___".
_SEPARATOR = re.compile(r"^[ \t]*(?:_{10,}|FINAL REPORT)[ \t]*$", re.MULTILINE)
_BLANK_LINE = re.compile(r"\n[ \t]*\n")


class _Header(NamedTuple):
    start: int
    end: int
    name: str | None  # None: a separator


def sections(text: str) -> dict[str, str]:
    """Return the sections of a report by normalised name, in reading order.

    Names are lower-case words joined by ``_`` (``findings``, ``wet_read``, ``preamble``). A text
    without known headers is one section `NOTE`. The last non-empty section of a name wins.

    >>> sections("FINDINGS:Clear lungs.\\n Impression: Normal.")
    {'findings': 'Clear lungs.', 'impression': 'Normal.'}
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    headers = _headers(text)
    structured = any(header.name in _STRUCTURE for header in headers)
    if not structured:  # unknown capitals such as "CXR:" are then part of the note
        headers = [h for h in headers if h.name is None or h.name in _ALIASES]
    pieces = _pieces(text, headers)
    if structured and not any(name in ("findings", "impression") for name, _ in pieces):
        pieces = _with_last_paragraph(pieces)
    result: dict[str, str] = {}
    if not structured:
        rest = "\n\n".join(piece for name, piece in pieces if name == "preamble" and piece)
        pieces = [(name, piece) for name, piece in pieces if name != "preamble"] + [(NOTE, rest)]
    for name, piece in pieces:
        if piece or name not in result:
            result.pop(name, None)  # the winner takes its own place in the order
            result[name] = piece
    return {name.replace(" ", "_"): piece for name, piece in result.items() if piece}


class ReportSettings(Settings):
    """Which sections of a report are used, in which order, and which sentences are dropped.

    ``sections`` are all used, in the ``order`` of the report or of this list; a report with none
    of them gives the first of ``fallback`` that it has. A name is the header in lower case with
    ``_`` between its words; beside the headers there are ``last_paragraph`` (what follows the
    first paragraph of the last section, in reports without findings and impression), ``note`` (a
    text without headers) and ``preamble``. Sentences of fewer than ``min_words`` or more than
    ``max_words`` words are dropped, with ``drop_repeated`` also those that the report says again.
    """

    sections: tuple[str, ...] = Field(("findings", "impression"), min_length=1)
    fallback: tuple[str, ...] = FALLBACK
    order: Literal["report", "settings"] = "report"
    min_words: int = Field(1, ge=1)
    max_words: int | None = Field(None, ge=1)
    drop_repeated: bool = False

    @field_validator("sections", "fallback")
    @classmethod
    def _normal_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        plain = tuple("_".join(name.replace("_", " ").lower().split()) for name in names)
        # An alias stands for the section that it is read as.
        plain = tuple(_NAMES.get(n.replace("_", " "), n).replace(" ", "_") for n in plain)
        if not all(plain) or len(set(plain)) < len(plain):
            raise ValueError("name each section once, as in findings, impression")
        return plain

    @model_validator(mode="after")
    def _ordered_limits(self) -> ReportSettings:
        if self.max_words is not None and self.max_words < self.min_words:
            raise ValueError(f"max_words {self.max_words} is below min_words {self.min_words}")
        return self


_DEFAULTS = ReportSettings()


def report_sentences(text: str, settings: ReportSettings = _DEFAULTS) -> list[tuple[str, str]]:
    """Return ``(section, sentence)`` of the sections that the settings name.

    >>> report_sentences("FINDINGS: Clear lungs. Normal heart.\\nIMPRESSION: Normal.")[1:]
    [('findings', 'Normal heart.'), ('impression', 'Normal.')]
    """
    return report_sentences_counted(text, settings)[0]


def report_sentences_counted(
    text: str, settings: ReportSettings = _DEFAULTS
) -> tuple[list[tuple[str, str]], Counter[str]]:
    """Return ``(section, sentence)`` pairs, and how many sentences were dropped for each reason.

    The reasons are those of `medclip_debias.data.sentences.DROPPED`.
    """
    found = sections(text)
    wanted = [name for name in found if name in settings.sections]
    if settings.order == "settings":
        wanted = [name for name in settings.sections if name in found]
    if not wanted:
        wanted = [name for name in settings.fallback if name in found][:1]
    kept: list[tuple[str, str]] = []
    dropped: Counter[str] = Counter()
    seen: set[str] = set()
    for name in wanted:
        sentences, counts = split_sentences_counted(found[name])
        dropped += counts
        for sentence in sentences:
            reason = _drop_reason(sentence, settings, seen)
            if reason:
                dropped[reason] += 1
            else:
                seen.add(sentence)
                kept.append((name, sentence))
    return kept, dropped


def _drop_reason(sentence: str, settings: ReportSettings, seen: set[str]) -> str:
    words = len(sentence.split())
    if words < settings.min_words:
        return "too short"
    if settings.max_words is not None and words > settings.max_words:
        return "too long"
    return "repeated" if settings.drop_repeated and sentence in seen else ""


def _headers(text: str) -> list[_Header]:
    """Return headers and separators in reading order, none inside another."""
    candidates = [_Header(m.start(), m.end(), None) for m in _SEPARATOR.finditer(text)]
    for match in _BARE_HEADER.finditer(text):
        name = _NAMES[(match[1] or match[2]).lower()]
        candidates.append(_Header(match.start(), match.end(), name))
    for match in _INLINE_HEADER.finditer(text):
        word = match[1] or match[2]
        name = _NAMES[word.lower()]
        candidates.append(_Header(match.start(1 if match[1] else 2), match.end(), name))
    for match in _LINE_HEADER.finditer(text):
        line_name = _line_header_name(text, match)
        if line_name is not None:
            candidates.append(_Header(match.start(), match.end(), line_name))
    candidates.sort(key=lambda header: (header.start, -header.end))
    kept: list[_Header] = []
    for header in candidates:
        inside = kept and header.start < kept[-1].end
        if not inside and not _is_subheading(header, kept[-1].name if kept else None):
            kept.append(header)
    return kept


def _line_header_name(text: str, match: re.Match[str]) -> str | None:
    """Name the header at the start of a line, or ``None`` where it is ordinary text."""
    written = " ".join(match[1].split())
    known = _NAMES.get(written.lower())
    if known is not None:
        # Wrapped prose can start a line with "comparison:"; a header has its own paragraph.
        return known if written[0].isupper() or _starts_paragraph(text, match.start()) else None
    spaced = match.end() == len(text) or text[match.end()].isspace()
    if not spaced or not _CAPITALS.fullmatch(written):
        return None
    lower = written.lower()
    part = next((part for part in _SUBSTRINGS if part in lower), None)
    return lower if part is None else _BY_SUBSTRING.get(part, part)


def _starts_paragraph(text: str, line: int) -> bool:
    """Tell whether the line that starts at ``line`` is the first, or follows a blank one."""
    before = text.rfind("\n", 0, max(line - 1, 0)) + 1
    return line == 0 or not text[before:line].strip()


def _is_subheading(header: _Header, current: str | None) -> bool:
    if header.name is None or header.name in _ALIASES or current not in ("findings", "impression"):
        return False
    return bool(_ANATOMY.search(header.name))


def _pieces(text: str, headers: list[_Header]) -> list[tuple[str, str]]:
    starts = [_Header(0, 0, None), *headers]
    ends = [*(header.start for header in headers), len(text)]
    return [
        (header.name or "preamble", text[header.end : end].strip())
        for header, end in zip(starts, ends, strict=True)
    ]


def _with_last_paragraph(pieces: list[tuple[str, str]]) -> list[tuple[str, str]]:
    named = [index for index, (name, _) in enumerate(pieces) if name != "preamble"]
    name, piece = pieces[named[-1]]
    first, *rest = _BLANK_LINE.split(piece, maxsplit=1)
    if not rest:
        return pieces
    return [*pieces[: named[-1]], (name, first.strip()), ("last_paragraph", rest[0].strip())]
