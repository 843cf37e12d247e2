"""From the text of a report to its sentences.

`sections` cuts a report at its headers. It agrees with the public MIMIC-CXR section parser on
well-formed reports (names normalised by its list, `medclip_debias.data.text.headings`; the last
section of a name wins; without findings and impression, what follows the last section's first
paragraph is ``last_paragraph``). It also reads mixed case, digits, ``FINDINGS:Lungs``, headers on
the first line or inside one, Markdown's headings, and keeps wet reads and addenda apart. Unlike
that parser it loses no findings below sub-headings (``LUNGS:``, ``ETT:``, a title of the study) or
behind an inline ``Comparison:``. `report_sentences` cuts the sections that `ReportSettings` names
into sentences (`medclip_debias.data.text.sentences`). Words that are left aside are counted by
section.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection
from typing import Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from medclip_debias.config import Settings
from medclip_debias.data.text.headings import SECTIONS, STRUCTURE, Headings
from medclip_debias.data.text.languages import LANGUAGES, Language, language
from medclip_debias.data.text.sentences import deidentified_share, split_sentences

NOTE = "note"
"""Name of the one section of a text without known headers."""

FALLBACK = ("last_paragraph", NOTE, "comparison")
"""Where sentences come from, first match, when there is neither findings nor impression."""

OTHER = "other heading"
"""Counts what stands below headings that are in no list; a heading may hold what is private."""

# Ends a section without naming the next one. A full-width line of underscores, not "___".
_SEPARATOR = re.compile(r"^[ \t]*(?:_{10,}|FINAL REPORT)[ \t]*$", re.MULTILINE)
# Markdown: a line that is a heading ("## Findings", "**Findings**"), and marks of bold text.
_MARKED_LINE = re.compile(
    r"^[ \t]*(?:#{1,6}[ \t]+|\*\*)[^\w\n]*(\w[^*#\n.!?]{0,60}?)[ \t:*#]*$", re.MULTILINE
)
_BOLD = re.compile(r"^[ \t]*[-*][ \t]+(?=\*\*)|\*\*+", re.MULTILINE)
_BLANK_LINE = re.compile(r"\n[ \t]*\n")
_ALNUM = re.compile(r"[^\W_]")
_BODY = ("findings", "impression")


class _Header(NamedTuple):
    start: int
    end: int
    name: str | None  # None: a separator
    kind: str = "section"  # or "title", "organ", "other"; "more": goes on with the section
    inline: bool = False
    structural: bool = True


class _Piece(NamedTuple):
    name: str
    text: str
    kind: str = "section"


class Sections(NamedTuple):
    """The sections of a report, and what is in none of them.

    Attributes:
        texts: of each section by its normalised name, in reading order.
        aside: words that are in no section of ``texts``, by the section they were in.
    """

    texts: dict[str, str]
    aside: Counter[str]


def sections(text: str, own: Collection[str] = (), rules: Language | None = None) -> Sections:
    """Return the sections of a report, and the words that are in none of them.

    Names are lower-case words joined by ``_`` (``findings``, ``wet_read``, ``preamble``). A text
    without known headers is one section `NOTE`. The last non-empty section of a name wins.

    >>> sections("FINDINGS:Clear lungs.\\n Impression: Normal.").texts
    {'findings': 'Clear lungs.', 'impression': 'Normal.'}

    Args:
        text: the report.
        own: names that are sections even inside findings and impression, where capitals that no
            list knows are sub-headings.
        rules: of the language whose headings are looked for; English by default.
    """
    rules = rules or language("en")
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    headings = rules.headings
    if rules.code != "en":  # an accent may be a character of its own
        text = unicodedata.normalize("NFC", text)
    text = _without_markdown(text, headings)
    candidates = _candidates(text, frozenset(own), headings)
    structured = any(h.name in STRUCTURE and h.structural for h in candidates)
    if not structured:  # unknown capitals such as "CXR:" are then part of the note
        candidates = [
            h for h in candidates if h.name is None or (h.name in SECTIONS and h.kind == "section")
        ]
    pieces = _pieces(text, _accepted(text, candidates, headings))
    aside: Counter[str] = Counter()
    if structured:
        texts = _joined(pieces, aside, headings)
        if not any(name in texts for name in _BODY):
            texts = _joined(_with_last_paragraph(pieces), aside := Counter(), headings)
    else:
        rest = "\n\n".join(piece.text for piece in pieces if piece.name == "preamble")
        texts = _joined([p for p in pieces if p.name != "preamble"], aside, headings)
        if rest.strip():
            texts[NOTE] = rest.strip()
    return Sections({name.replace(" ", "_"): piece for name, piece in texts.items()}, aside)


def _without_markdown(text: str, headings: Headings) -> str:
    """Return a text whose known headings end in a colon and in which no word is bold."""

    def heading(line: re.Match[str]) -> str:  # "# left 5th rib" is a fracture
        return f"{line[1]}:" if line[1].lower() in headings.names else line[0]

    return _BOLD.sub("", _MARKED_LINE.sub(heading, text))


def _shown(name: str) -> str:
    """Return the name under which words are counted: one for all headings that no list knows."""
    known = name in SECTIONS or name in ("preamble", NOTE, "last paragraph")
    return name.replace(" ", "_") if known else OTHER


def words_in(text: str) -> int:
    """Count the words of a text; ``___`` and other marks are none."""
    return sum(map(bool, map(_ALNUM.search, text.split())))


class ReportSettings(Settings):
    """Which sections of a report are used, in which order, and which sentences are dropped.

    All ``sections`` are used, in the ``order`` of the report or of this list; of a report with none
    of them, the first of ``fallback`` that it has. A name is the header in lower case with ``_``
    between its words; further names are ``last_paragraph`` (what follows the first paragraph of the
    last section, in reports without findings and impression), ``note`` (a text without headers)
    and ``preamble``. Sentences of fewer than ``min_words`` or more than ``max_words`` words are
    dropped, with ``drop_repeated`` also repeated ones. A sentence of ``XXXX`` and ``___`` alone is
    always dropped; ``max_deidentified`` drops those with a larger share of such marks.

    ``language`` is one of `LANGUAGES`, or ``auto`` for the source's own (English if it states
    none).
    """

    sections: tuple[str, ...] = Field(("findings", "impression"), min_length=1)
    fallback: tuple[str, ...] = FALLBACK
    order: Literal["report", "settings"] = "report"
    min_words: int = Field(1, ge=1)
    max_words: int | None = Field(None, ge=1)
    drop_repeated: bool = False
    max_deidentified: float = Field(1.0, ge=0, le=1)
    language: Literal["auto", "en", "es"] = "auto"

    @field_validator("sections", "fallback")
    @classmethod
    def _normal_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        plain = tuple("_".join(name.replace("_", " ").lower().split()) for name in names)
        # An alias stands for the section that it is read as.
        known = {
            k: v for code in reversed(LANGUAGES) for k, v in language(code).headings.names.items()
        }
        plain = tuple(known.get(n.replace("_", " "), n).replace(" ", "_") for n in plain)
        if not all(plain) or len(set(plain)) < len(plain):
            raise ValueError("name each section once, as in findings, impression")
        return plain

    @model_validator(mode="after")
    def _ordered_limits(self) -> ReportSettings:
        if self.max_words is not None and self.max_words < self.min_words:
            raise ValueError(f"max_words {self.max_words} is below min_words {self.min_words}")
        return self


_DEFAULTS = ReportSettings()


class Cut(NamedTuple):
    """A report, cut.

    Attributes:
        sentences: ``(section, sentence)`` pairs.
        dropped: how many sentences were dropped, by reason
            (`medclip_debias.data.text.sentences.DROPPED`).
        used: words of the sections that were cut into sentences.
        aside: words of the sections that were left aside, by section.
        language: whose rules cut it.
    """

    sentences: list[tuple[str, str]]
    dropped: Counter[str]
    used: int
    aside: Counter[str]
    language: str = "en"


def report_sentences(text: str, settings: ReportSettings = _DEFAULTS, declared: str = "en") -> Cut:
    """Return the sentences of the sections that the settings name; what is left aside is counted.

    >>> report_sentences("FINDINGS: Clear lungs. Normal heart.\\nIMPRESSION: Normal.").sentences[1:]
    [('findings', 'Normal heart.'), ('impression', 'Normal.')]
    """
    code = declared if settings.language == "auto" else settings.language
    texts, aside = sections(text, (*settings.sections, *settings.fallback), language(code))
    wanted = [name for name in texts if name in settings.sections]
    if settings.order == "settings":
        wanted = [name for name in settings.sections if name in texts]
    if not wanted:
        wanted = [name for name in settings.fallback if name in texts][:1]
    for name in (name for name in texts if name not in wanted):
        aside[_shown(name.replace("_", " "))] += words_in(texts[name])
    selected: list[tuple[str, str]] = []
    dropped: Counter[str] = Counter()
    seen: set[str] = set()
    for name in wanted:
        sentences, counts = split_sentences(texts[name], code)
        dropped += counts
        for sentence in sentences:
            reason = _drop_reason(sentence, settings, seen)
            if reason:
                dropped[reason] += 1
            else:
                seen.add(sentence)
                selected.append((name, sentence))
    used = sum(words_in(texts[name]) for name in wanted)
    return Cut(selected, dropped, used, +aside, code)


def _drop_reason(sentence: str, settings: ReportSettings, seen: set[str]) -> str:
    words = len(sentence.split())
    if words < settings.min_words:
        return "too short"
    if settings.max_words is not None and words > settings.max_words:
        return "too long"
    if settings.max_deidentified < 1 and deidentified_share(sentence) > settings.max_deidentified:
        return "mostly de-identified"
    return "repeated" if settings.drop_repeated and sentence in seen else ""


def _candidates(text: str, own: frozenset[str], headings: Headings) -> list[_Header]:
    """Return all that may be a header or a separator, in reading order."""

    def named(match: re.Match[str]) -> str:
        return headings.names[match[match.lastindex or 0].lower()]

    def titled(match: re.Match[str]) -> bool:
        return headings.kind_of(match[1], capitals=True) == ("title", "findings")

    cased = any(map(str.isupper, text))
    lines = (_line_header(text, m, own, headings, cased) for m in headings.line.finditer(text))
    candidates = [
        *(_Header(m.start(), m.end(), None) for m in _SEPARATOR.finditer(text)),
        *(_Header(m.start(), m.end(), named(m)) for m in headings.bare.finditer(text)),
        *(
            _Header(m.start(m.lastindex or 0), m.end(), named(m), inline=True)
            for m in headings.inline.finditer(text)
        ),
        *(
            _Header(m.start(1), m.end(), "findings", "title", inline=True, structural=False)
            for m in headings.inline_title.finditer(text)
            if titled(m)
        ),
        *(
            _Header(m.start(1), m.end(), "findings", "bare title", structural=False)
            for m in headings.bare_title.finditer(text)
            if headings.is_title_only(m[1]) and titled(m)
        ),
        *(header for header in lines if header is not None),
    ]
    return sorted(candidates, key=lambda header: (header.start, -header.end))


def _line_header(
    text: str, match: re.Match[str], own: frozenset[str], headings: Headings, cased: bool
) -> _Header | None:
    """Read the header at the start of a line; ``None`` where it is ordinary text.

    ``cased``: the report has capitals, so that wrapped prose, which can start a line with
    "comparison:", differs from a header.
    """
    written = " ".join(match[1].split())
    known = written.lower() in headings.names
    spaced = match.end() == len(text) or text[match.end()].isspace()
    capitals = (known and written.isupper()) or (
        spaced and bool(headings.capitals.fullmatch(written))
    )
    heading = headings.kind_of(written, capitals)
    if heading is None:
        return None
    line = match.start()
    before = text[text.rfind("\n", 0, max(line - 1, 0)) + 1 : line]
    if cased and not written[0].isupper() and line and before.strip():  # no paragraph starts here
        return None
    kind, name = heading
    if kind in ("organ", "other") and written.lower().replace(" ", "_") in own:
        kind, name = "section", written.lower()
    structural = kind != "title" or capitals
    return _Header(match.start(), match.end(), name, kind, structural=structural)


def _accepted(text: str, candidates: list[_Header], headings: Headings) -> list[_Header]:
    """Return the headers that start a section: none inside another, and no sub-heading."""
    accepted: list[_Header] = []
    host: str | None = None  # the section around an inline remark such as "Comparison: none."
    starts = [header.start for header in candidates]
    for header in candidates:
        last = accepted[-1] if accepted else _Header(0, 0, None)
        if accepted and header.start < last.end:
            continue
        current = host or last.name
        if _is_subheading(text, header, current, last.end):
            if host:
                accepted.append(_Header(header.start, header.start, host, "more"))
                host = None
            continue
        inside = header.inline and current in _BODY and header.kind == "section"
        kind = "more" if inside and header.name == current else header.kind
        accepted.append(header._replace(kind=kind))
        host = None
        if inside and header.name not in _BODY:  # until its end, the section goes on behind it
            following = bisect_left(starts, header.end)
            limit = starts[following] + 1 if following < len(starts) else len(text)
            end = headings.end_of_remark.search(text, header.end, limit)
            if end is None:
                host = current
            else:
                accepted.append(_Header(end.end(), end.end(), current, "more"))
    return accepted


def _is_subheading(text: str, header: _Header, current: str | None, end: int) -> bool:
    """Tell whether a header stays text of the section ``current``, whose header ends at ``end``."""
    if header.kind == "bare title":
        # On top of a report, or of a section, it is followed by anything.
        return current is None or current in _BODY or not text[end : header.start].strip()
    if header.kind == "section":
        return False
    if current in _BODY:
        return True
    return header.kind != "title" and current in ("wet read", "addendum")


def _pieces(text: str, headers: list[_Header]) -> list[_Piece]:
    starts = [_Header(0, 0, None), *headers]
    ends = [*(header.start for header in headers), len(text)]
    return [
        _Piece(
            header.name or "preamble",
            # "LUNGS: Clear." says nothing without its first word.
            text[header.start if header.kind == "organ" else header.end : end].strip(),
            header.kind,
        )
        for header, end in zip(starts, ends, strict=True)
    ]


def _joined(pieces: list[_Piece], aside: Counter[str], headings: Headings) -> dict[str, str]:
    """Return the text of each section; what another one replaced is counted in ``aside``."""
    result: dict[str, str] = {}
    below_title = False  # the findings so far stand below a title; a heading of their own wins
    for name, piece, kind in pieces:
        if not piece:
            continue
        if kind == "more" or (kind == "organ" and name in result):
            result[name] = f"{result[name]}\n{piece}" if name in result else piece
        elif kind in ("title", "bare title"):
            if headings.is_title_only(piece):
                aside["examination"] += words_in(piece)
            elif name in result:
                result[name] = f"{result[name]}\n\n{piece}"
            else:
                result[name] = piece
                below_title = True
        else:
            replaced = result.pop(name, "")  # the winner takes its own place in the order
            if name == "findings" and below_title:
                aside["examination"] += words_in(replaced)
                below_title = False
            elif replaced:
                aside[f"{_shown(name)} (replaced)"] += words_in(replaced)
            result[name] = piece
    return result


def _with_last_paragraph(pieces: list[_Piece]) -> list[_Piece]:
    named = [index for index, piece in enumerate(pieces) if piece.name != "preamble"]
    name, piece, kind = pieces[named[-1]]
    first, *rest = _BLANK_LINE.split(piece, maxsplit=1)
    if not rest:
        return pieces
    last = _Piece("last_paragraph", rest[0].strip())
    # What follows has no heading, as the text below a second "FINAL REPORT".
    behind = pieces[named[-1] + 1 :]
    return [*pieces[: named[-1]], _Piece(name, first.strip(), kind), last, *behind]
